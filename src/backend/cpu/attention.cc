#include <algorithm>
#include <limits>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/kv_rows.h"
#include "backend/cpu/vector_math.h"
#include "base/check.h"

// Attention over pages in one pass with a running maximum. A query's arithmetic depends on nothing but its row
// and what stands before it: it visits the pages in order, as attend.h says, and the context in segments of fixed places
// that are joined in order. So neither the chunk a token came in, nor its neighbours, nor the threads that took the
// segments can be seen in the result.

namespace quire {
namespace {

constexpr uint32_t kQueryBlock = 16;      // tokens of one run that share the unpacked pages
constexpr uint32_t kSegmentTokens = 512;  // of the context: enough pieces for all threads, few enough to join
constexpr float kNothing = -std::numeric_limits<float>::infinity();

size_t round_up(size_t n, size_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

// The softmax so far of some queries: each one's maximum, sum of shares, and sum of values under their shares.
struct Softmax {
  std::vector<float> max, sum;  // [queries], of which the last may be no one's
  std::vector<float> values;    // [queries, width]
  size_t width = 0;

  void resize(size_t queries, size_t value_width) {
    width = value_width;
    max.resize(queries);
    sum.resize(queries);
    values.resize(queries * width);
  }

  void rescale(size_t query, float new_max) {
    const float factor = max[query] == kNothing ? 0.0f : exp4(all4(max[query] - new_max))[0];
    max[query] = new_max;
    sum[query] *= factor;
    float* row = values.data() + query * width;
    for (size_t i = 0; i < width; ++i) row[i] *= factor;
  }

  // Joins what a later segment of the context came to, for the first `queries`.
  void join(const Softmax& later, size_t queries) {
    for (size_t q = 0; q < queries; ++q) {
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

// What a thread works in; it grows and stays.
struct Scratch {
  std::vector<AttendQuery> queries;
  std::vector<const std::byte*> pages;
  std::vector<float> query_lanes, key_rows, value_rows, scores;
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
        key_width_(round_up(layer_.shape.key_dim, kAttendLanes)),
        value_width_(round_up(layer_.shape.value_dim, kAttendLanes)) {}

  uint32_t first_segment() const { return first_visible(row(0)) / kSegmentTokens; }
  uint32_t last_segment() const { return row(block_.tokens - 1) / kSegmentTokens; }

  void compute_segment(uint32_t segment, void (*attend)(const AttendArgs& args), Softmax& out) const {
    thread_local Scratch scratch;
    const size_t room = round_up(queries_, kAttendLanes);
    out.resize(room, value_width_);
    scratch.query_lanes.resize(room * key_width_);
    scratch.key_rows.resize(page_tokens_ * key_width_);
    scratch.value_rows.resize(page_tokens_ * value_width_);
    scratch.scores.resize((page_tokens_ + 1) * kAttendLanes);
    list_queries(scratch.queries);
    const uint32_t begin = std::max(first_visible(row(0)), segment * kSegmentTokens);
    const uint32_t end = std::min(row(block_.tokens - 1) + 1, (segment + 1) * kSegmentTokens);
    const uint32_t begin_page = begin / page_tokens_, end_page = (end + page_tokens_ - 1) / page_tokens_;
    scratch.pages.clear();
    for (uint32_t page = begin_page; page < end_page; ++page)
      scratch.pages.push_back(params_.kv.head_page(block_.run, block_.kv_head, page));
    attend({.shape = &layer_.shape,
            .page_tokens = page_tokens_,
            .pages = scratch.pages.data(),
            .begin_page = begin_page,
            .end_page = end_page,
            .queries = scratch.queries.data(),
            .count = queries_,
            .scale = params_.scale,
            .soft_cap = params_.soft_cap,
            .max = out.max.data(),
            .sum = out.sum.data(),
            .values = out.values.data(),
            .key_width = key_width_,
            .value_width = value_width_,
            .query_lanes = scratch.query_lanes.data(),
            .key_rows = scratch.key_rows.data(),
            .value_rows = scratch.value_rows.data(),
            .scores = scratch.scores.data()});
  }

  void join(Softmax& all, const Softmax& later) const { all.join(later, queries_); }

  void finish(Softmax& all) const {
    for (size_t q = 0; q < queries_; ++q) {
      if (params_.sinks) {
        const float sink = params_.sinks.vector()[head(q)];
        if (sink > all.max[q]) all.rescale(q, sink);
        all.sum[q] += exp4(all4(sink - all.max[q]))[0];
      }
      const size_t token = block_.first_token + q / heads_per_kv_;
      float* out = params_.out.f32.row(token) + head(q) * layer_.shape.value_dim;
      const float* row = all.values.data() + q * value_width_;
      for (size_t i = 0; i < layer_.shape.value_dim; ++i) out[i] = row[i] / all.sum[q];
      if (is_rotated(layer_.shape.value_format)) rotate_kv_row({out, layer_.shape.value_dim});
    }
  }

 private:
  uint32_t row(uint32_t token) const {
    return params_.kv.head_row(
        block_.run, block_.kv_head,
        batch_.runs[block_.run].row_of(block_.first_token + token, layer_.shape.window));
  }
  size_t head(size_t query) const { return block_.kv_head * heads_per_kv_ + query % heads_per_kv_; }

  uint32_t first_visible(uint32_t row) const {
    const uint32_t window = layer_.shape.window;
    return window == 0 || row < window ? 0 : row + 1 - window;
  }

  void list_queries(std::vector<AttendQuery>& queries) const {
    queries.clear();
    for (size_t q = 0; q < queries_; ++q) {
      const uint32_t token = uint32_t(q / heads_per_kv_);
      queries.push_back({params_.query.row(block_.first_token + token) + head(q) * layer_.shape.key_dim,
                         first_visible(row(token)), row(token) + 1});
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
    // The last first: they see the most, and no thread should begin such a block when the others are done.
    for (uint32_t left = run.count; left > 0;) {
      const uint32_t begin = (left - 1) / kQueryBlock * kQueryBlock, tokens = left - begin;
      left = begin;
      for (uint32_t h = 0; h < shape.kv_heads; ++h) blocks.push_back({r, run.begin + begin, tokens, h});
    }
  }
  if (blocks.size() >= 2 * pool_.size()) {
    pool_.parallel_for(blocks.size(), 1, [&](size_t begin, size_t end) {
      thread_local Softmax all, later;
      for (size_t i = begin; i < end; ++i) {
        const BlockAttention block(params, batch_, blocks[i]);
        block.compute_segment(block.first_segment(), kernels_.attend, all);
        for (uint32_t s = block.first_segment() + 1; s <= block.last_segment(); ++s) {
          block.compute_segment(s, kernels_.attend, later);
          block.join(all, later);
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
        attention[pieces[i].block].compute_segment(pieces[i].segment, kernels_.attend, partial[i]);
      }
    });
    for (size_t i = 0; i < pieces.size();) {
      Softmax& all = partial[i];
      const size_t block = pieces[i].block;
      for (++i; i < pieces.size() && pieces[i].block == block; ++i) attention[block].join(all, partial[i]);
      attention[block].finish(all);
    }
  }
  pool_.parallel_for(params.out.f32.rows, 1, [&](size_t begin, size_t end) {
    for (size_t t = begin; t < end; ++t) quantize(params.out, t);
  });
}

}  // namespace quire
