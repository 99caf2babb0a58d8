#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/vector_math.h"
#include "base/check.h"
#include "tensor/float16.h"

// Attention over pages in one pass with a running maximum. A query's arithmetic depends on nothing but its position
// and what stands before it: it visits the pages in order, every page by all of its rows (those it must not see count
// with a share of exactly zero), and the context in segments of fixed places that are joined in order. So neither the
// chunk a token came in, nor its neighbours, nor the threads that took the segments can be seen in the result.

namespace quire {
namespace {

constexpr uint32_t kQueryBlock = 16;       // tokens of one run that share the unpacked pages
constexpr uint32_t kSegmentTokens = 2048;  // of the context
constexpr size_t kTile = 4;                // queries computed side by side
constexpr size_t kDimTile = 16;            // dimensions of a value row summed in registers
constexpr float kNothing = -std::numeric_limits<float>::infinity();

size_t round_up(size_t n, size_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

// `rows` rows of `dim` values, each into a row of `width` floats whose rest is zero.
void unpack_rows(KvFormat format, const std::byte* bytes, size_t rows, size_t dim, size_t width, float* out) {
  const size_t row_bytes = kv_row_bytes(format, dim);
  for (size_t r = 0; r < rows; ++r, bytes += row_bytes, out += width) {
    if (format == KvFormat::f32) {
      std::memcpy(out, bytes, dim * sizeof(float));
    } else {
      const auto* halves = reinterpret_cast<const uint16_t*>(bytes);
      if (format == KvFormat::f16) {
        for (size_t i = 0; i < dim; ++i) out[i] = f16_to_f32(halves[i]);
      } else {
        for (size_t i = 0; i < dim; ++i) out[i] = bf16_to_f32(halves[i]);
      }
    }
    for (size_t i = dim; i < width; ++i) out[i] = 0.0f;
  }
}

// The softmax so far of some queries: each one's maximum, sum of shares, and sum of values under their shares.
struct Softmax {
  std::vector<float> max, sum;  // [queries]
  std::vector<float> values;    // [queries, width]
  size_t width = 0;

  void reset(size_t queries, size_t value_width) {
    width = value_width;
    max.assign(queries, kNothing);
    sum.assign(queries, 0.0f);
    values.assign(queries * width, 0.0f);
  }

  void rescale(size_t query, float new_max) {
    const float factor = max[query] == kNothing ? 0.0f : exp4(all4(max[query] - new_max))[0];
    max[query] = new_max;
    sum[query] *= factor;
    float* row = values.data() + query * width;
    for (size_t i = 0; i < width; ++i) row[i] *= factor;
  }

  // Joins what a later segment of the context came to.
  void join(const Softmax& later) {
    for (size_t q = 0; q < max.size(); ++q) {
      if (later.max[q] == kNothing) continue;
      if (later.max[q] > max[q]) rescale(q, later.max[q]);
      const float factor = exp4(all4(later.max[q] - max[q]))[0];
      sum[q] += factor * later.sum[q];
      float* row = values.data() + q * width;
      const float* other = later.values.data() + q * width;
      for (size_t i = 0; i < width; ++i) row[i] += factor * other[i];
    }
  }
};

// A block of queries: some tokens of one run, all query heads of one KV head.
struct Block {
  uint32_t run, first_token, tokens, kv_head;
};

class BlockAttention {
 public:
  BlockAttention(const AttendParams& params, const BatchView& batch, const Block& block)
      : params_(params),
        batch_(batch),
        layer_(*params.kv.layer),
        page_tokens_(params.kv.group->layout->page_tokens),
        block_(block),
        heads_per_kv_(params.heads / layer_.shape.kv_heads),
        queries_(block.tokens * heads_per_kv_),
        key_width_(round_up(layer_.shape.key_dim, 4)),
        value_width_(round_up(layer_.shape.value_dim, kDimTile)) {
    gather_queries();
  }

  uint32_t first_segment() const { return first_visible(position(0)) / kSegmentTokens; }
  uint32_t last_segment() const { return position(block_.tokens - 1) / kSegmentTokens; }

  void compute_segment(uint32_t segment, Softmax& out) {
    out.reset(queries_, value_width_);
    const uint32_t begin = std::max(first_visible(position(0)), segment * kSegmentTokens);
    const uint32_t end = std::min(position(block_.tokens - 1) + 1, (segment + 1) * kSegmentTokens);
    for (uint32_t page = begin / page_tokens_; page * page_tokens_ < end; ++page) add_page(page, out);
  }

  void finish(Softmax& all) {
    for (size_t q = 0; q < queries_; ++q) {
      const uint32_t head = uint32_t(block_.kv_head * heads_per_kv_ + q % heads_per_kv_);
      if (params_.sinks) {
        const float sink = params_.sinks.vector()[head];
        if (sink > all.max[q]) all.rescale(q, sink);
        all.sum[q] += exp4(all4(sink - all.max[q]))[0];
      }
      const size_t token = block_.first_token + q / heads_per_kv_;
      float* out = params_.out.f32.row(token) + head * layer_.shape.value_dim;
      const float* row = all.values.data() + q * value_width_;
      for (size_t i = 0; i < layer_.shape.value_dim; ++i) out[i] = row[i] / all.sum[q];
    }
  }

 private:
  uint32_t position(uint32_t token) const { return batch_.positions[block_.first_token + token]; }

  uint32_t first_visible(uint32_t position) const {
    const uint32_t window = layer_.shape.window;
    return window == 0 || position < window ? 0 : position + 1 - window;
  }

  // Query rows one after the other, filled up with zeros to whole tiles and vectors.
  void gather_queries() {
    query_rows_.assign(round_up(queries_, kTile) * key_width_, 0.0f);
    const size_t dim = layer_.shape.key_dim;
    for (size_t q = 0; q < queries_; ++q) {
      const float* row = params_.query.row(block_.first_token + q / heads_per_kv_) +
                         (block_.kv_head * heads_per_kv_ + q % heads_per_kv_) * dim;
      std::copy_n(row, dim, query_rows_.data() + q * key_width_);
    }
  }

  void add_page(uint32_t page, Softmax& out) {
    const uint32_t page_begin = page * page_tokens_;
    // Beyond the block's last position nothing may be written yet.
    const uint32_t rows = std::min(page_tokens_, position(block_.tokens - 1) + 1 - page_begin);
    keys_.resize(page_tokens_ * key_width_);
    values_.resize(page_tokens_ * value_width_);
    scores_.resize(kTile * page_tokens_);
    const std::byte* bytes = params_.kv.group->page(block_.run, page);
    unpack_rows(layer_.shape.key_format, bytes + layer_.key_offset(block_.kv_head, 0), rows,
                layer_.shape.key_dim, key_width_, keys_.data());
    unpack_rows(layer_.shape.value_format, bytes + layer_.value_offset(block_.kv_head, 0, page_tokens_), rows,
                layer_.shape.value_dim, value_width_, values_.data());
    std::fill(keys_.begin() + ptrdiff_t(rows * key_width_), keys_.end(), 0.0f);
    for (size_t tile = 0; tile < queries_; tile += kTile) {
      const size_t count = std::min(kTile, queries_ - tile);
      // Queries of a tile may be of two tokens; the last one sees most.
      const uint32_t last = position(uint32_t((tile + count - 1) / heads_per_kv_));
      if (last < page_begin) continue;
      score_tile(tile);
      bool any = false;
      for (size_t q = 0; q < count; ++q)
        any |= add_shares(page_begin, tile + q, scores_.data() + q * page_tokens_, out);
      if (any) add_values(tile, count, std::min(rows, last + 1 - page_begin), out);
    }
  }

  // Scores of kTile queries with every row of the page.
  void score_tile(size_t tile) {
    const float* queries = query_rows_.data() + tile * key_width_;
    for (size_t row = 0; row < page_tokens_; row += 2) {
      const float* keys = keys_.data() + row * key_width_;
      F32x4 sums[2][kTile] = {};
      for (size_t d = 0; d < key_width_; d += 4) {
        const F32x4 first = load4(keys + d), second = load4(keys + key_width_ + d);
        for (size_t q = 0; q < kTile; ++q) {
          const F32x4 query = load4(queries + q * key_width_ + d);
          sums[0][q] = multiply_add(query, first, sums[0][q]);
          sums[1][q] = multiply_add(query, second, sums[1][q]);
        }
      }
      for (size_t i = 0; i < 2; ++i) {
        const F32x4 totals = sum_each(sums[i][0], sums[i][1], sums[i][2], sums[i][3]);
        for (size_t q = 0; q < kTile; ++q) scores_[q * page_tokens_ + row + i] = totals[q];
      }
    }
  }

  // Turns a query's scores into shares under its running maximum. False if it sees nothing of this page.
  bool add_shares(uint32_t page_begin, size_t query, float* scores, Softmax& out) {
    const uint32_t at = position(uint32_t(query / heads_per_kv_));
    const uint32_t seen = std::max(page_begin, first_visible(at));
    const uint32_t begin = seen - page_begin;
    const uint32_t end = at < page_begin ? 0 : std::min(page_tokens_, at + 1 - page_begin);
    if (begin >= end) {
      std::fill_n(scores, page_tokens_, 0.0f);
      return false;
    }
    for (uint32_t row = 0; row < page_tokens_; ++row) {
      float score = scores[row] * params_.scale;
      if (params_.soft_cap > 0) score = params_.soft_cap * std::tanh(score / params_.soft_cap);
      scores[row] = row >= begin && row < end ? score : kNothing;
    }
    F32x4 max = load4(scores);
    for (uint32_t row = 4; row < page_tokens_; row += 4) max = max4(max, load4(scores + row));
    if (max_lane(max) > out.max[query]) out.rescale(query, max_lane(max));
    F32x4 sum = {};
    for (uint32_t row = 0; row < page_tokens_; row += 4) {
      const F32x4 share = exp4(load4(scores + row) - all4(out.max[query]));
      store4(share, scores + row);
      sum += share;
    }
    out.sum[query] += (sum[0] + sum[1]) + (sum[2] + sum[3]);
    return true;
  }

  // values += shares * rows, for the queries of a tile.
  void add_values(size_t tile, size_t count, size_t rows, Softmax& out) {
    float spare[kDimTile] = {};
    for (size_t d = 0; d < value_width_; d += kDimTile) {
      F32x4 sums[kTile][kDimTile / 4];
      for (size_t q = 0; q < kTile; ++q) {
        const float* from = q < count ? out.values.data() + (tile + q) * value_width_ + d : spare;
        for (size_t i = 0; i < kDimTile / 4; ++i) sums[q][i] = load4(from + 4 * i);
      }
      for (size_t row = 0; row < rows; ++row) {
        const float* value = values_.data() + row * value_width_ + d;
        F32x4 parts[kDimTile / 4];
        for (size_t i = 0; i < kDimTile / 4; ++i) parts[i] = load4(value + 4 * i);
        for (size_t q = 0; q < kTile; ++q) {
          const F32x4 share = all4(scores_[q * page_tokens_ + row]);
          for (size_t i = 0; i < kDimTile / 4; ++i) sums[q][i] = multiply_add(share, parts[i], sums[q][i]);
        }
      }
      for (size_t q = 0; q < count; ++q) {
        float* to = out.values.data() + (tile + q) * value_width_ + d;
        for (size_t i = 0; i < kDimTile / 4; ++i) store4(sums[q][i], to + 4 * i);
      }
    }
  }

  const AttendParams& params_;
  const BatchView& batch_;
  const KvLayerLayout& layer_;
  const uint32_t page_tokens_;
  const Block block_;
  const uint32_t heads_per_kv_;
  const size_t queries_;
  const size_t key_width_, value_width_;
  std::vector<float> query_rows_;  // [queries, key_width]
  std::vector<float> keys_;        // [page_tokens, key_width]
  std::vector<float> values_;      // [page_tokens, value_width]
  std::vector<float> scores_;      // [kTile, page_tokens]
};

}  // namespace

void CpuBackend::attend(const AttendParams& params) {
  const KvLayerShape& shape = params.kv.layer->shape;
  CHECK(params.heads % shape.kv_heads == 0 && params.query.width == params.heads * shape.key_dim);
  CHECK(params.out.f32.width == params.heads * shape.value_dim);
  CHECK(params.kv.group->layout->page_tokens % 4 == 0 &&
        kSegmentTokens % params.kv.group->layout->page_tokens == 0);
  std::vector<Block> blocks;
  for (uint32_t r = 0; r < batch_.runs.size(); ++r) {
    const TokenRun& run = batch_.runs[r];
    for (uint32_t begin = 0; begin < run.count; begin += kQueryBlock) {
      const uint32_t tokens = std::min(kQueryBlock, run.count - begin);
      for (uint32_t h = 0; h < shape.kv_heads; ++h) blocks.push_back({r, run.begin + begin, tokens, h});
    }
  }
  if (blocks.size() >= 2 * pool_.size()) {
    pool_.parallel_for(blocks.size(), 1, [&](size_t begin, size_t end) {
      thread_local Softmax all, later;
      for (size_t i = begin; i < end; ++i) {
        BlockAttention block(params, batch_, blocks[i]);
        block.compute_segment(block.first_segment(), all);
        for (uint32_t s = block.first_segment() + 1; s <= block.last_segment(); ++s) {
          block.compute_segment(s, later);
          all.join(later);
        }
        block.finish(all);
      }
    });
  } else {
    // Too few blocks for all threads: their segments apart, then joined in order.
    struct Piece {
      size_t block;
      uint32_t segment;
    };
    std::vector<BlockAttention> attention;
    std::vector<Piece> pieces;
    for (const Block& block : blocks) attention.emplace_back(params, batch_, block);
    for (size_t b = 0; b < blocks.size(); ++b) {
      for (uint32_t s = attention[b].first_segment(); s <= attention[b].last_segment(); ++s)
        pieces.push_back({b, s});
    }
    std::vector<Softmax> partial(pieces.size());
    pool_.parallel_for(pieces.size(), 1, [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) {
        BlockAttention(params, batch_, blocks[pieces[i].block])
            .compute_segment(pieces[i].segment, partial[i]);
      }
    });
    for (size_t i = 0; i < pieces.size();) {
      Softmax& all = partial[i];
      const size_t block = pieces[i].block;
      for (++i; i < pieces.size() && pieces[i].block == block; ++i) all.join(partial[i]);
      attention[block].finish(all);
    }
  }
  pool_.parallel_for(params.out.f32.rows, 1, [&](size_t begin, size_t end) {
    for (size_t t = begin; t < end; ++t) quantize(params.out, t);
  });
}

}  // namespace quire
