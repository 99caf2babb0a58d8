#include <algorithm>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "backend/cpu/attention/kv_rows.h"
#include "backend/cpu/attention/softmax_room.h"
#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/vector_math.h"
#include "base/check.h"
#include "base/thread_pool.h"
#include "tensor/buffer.h"

// Attention over pages in one pass with a running maximum. A query's arithmetic depends on nothing but its row
// and what stands before it: it visits the pages in order, as attend.h says, and the context in segments of fixed places
// that are joined in order. So neither the chunk a token came in, nor its neighbours, nor the threads that took the
// segments can be seen in the result.

namespace quire {
namespace {

constexpr uint32_t kQueryBlock = 16;  // tokens of one run that share the unpacked pages
// Tokens of the context: enough pieces for all threads, few enough to join. Of latent rows, to which many heads of wide values attend,
// there are fewer: joining is more work, and heads are pieces too.
constexpr uint32_t kSegmentTokens = 512, kLatentSegmentTokens = 1024;
constexpr uint32_t kLeastBlockHeads = 16;    // of those that share a KV head: they fill the widest vectors
constexpr uint32_t kMostBlockQueries = 256;  // whose values stay in a cache
constexpr uint32_t kPagesBeyond = 2;         // of a segment that are fetched while it is computed
constexpr uint32_t kChosenBlockHeads =
    32;                             // of one token that chooses rows, where blocks are few: each gathers
                                    // them
constexpr size_t kReadBeyond = 64;  // what a vector may read beyond the last row

size_t round_up(size_t n, size_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

// A block of queries: some tokens of one run, some of the query heads of one KV head.
struct Block {
  uint32_t run, first_token, tokens, kv_head, first_head, heads;
  const uint32_t* chosen = nullptr;  // of one token: it attends to these rows alone
};

// What a thread works in; it grows and stays.
struct Scratch {
  std::vector<AttendQuery> queries;
  std::vector<const std::byte*> pages;
  std::vector<float> query_lanes, key_rows, value_rows, scores;
  std::vector<std::byte> gathered;
};

class BlockAttention {
 public:
  BlockAttention(const AttendParams& params, const BatchView& batch, const Block& block)
      : params_(params),
        batch_(batch),
        layer_(*params.kv.layer),
        page_tokens_(params.kv.group->layout->page_tokens),
        block_(block),
        segment_tokens_(segment_tokens(layer_.shape)),
        queries_(block.tokens * block.heads),
        key_width_(round_up(layer_.shape.key_dim, kAttendLanes)),
        value_width_(round_up(layer_.shape.value_dim, kAttendLanes)) {}

  static uint32_t segment_tokens(const KvLayerShape& shape) {
    return shape.key_goes_on ? kLatentSegmentTokens : kSegmentTokens;
  }
  uint32_t first_segment() const { return first_visible(row(0)) / segment_tokens_; }
  uint32_t last_segment() const { return row(block_.tokens - 1) / segment_tokens_; }

  size_t queries() const { return queries_; }
  size_t value_width() const { return value_width_; }

  // `pages_beyond`: so many pages after the segment are what this thread reads next.
  void compute_segment(uint32_t segment, void (*attend)(const AttendArgs& args), const Softmax& out,
                       uint32_t pages_beyond) const {
    thread_local Scratch scratch;
    const bool goes_on = layer_.shape.key_goes_on;
    const size_t query_width = key_width_ + (goes_on ? value_width_ : 0);
    const size_t page_scores = (page_tokens_ + 1) * kAttendLanes;
    scratch.query_lanes.resize(round_up(queries_, kAttendLanes) * query_width);
    scratch.key_rows.resize(page_tokens_ * (key_width_ + kRowGap));
    scratch.value_rows.resize(page_tokens_ * (value_width_ + kRowGap));
    scratch.scores.resize((goes_on ? 2 : 1) * page_scores);
    list_queries(scratch.queries);
    const uint32_t begin = std::max(first_visible(row(0)), segment * segment_tokens_);
    const uint32_t end = row(block_.tokens - 1) + 1;
    const uint32_t begin_page = begin / page_tokens_, last_page = (end - 1) / page_tokens_;
    const uint32_t end_page = std::min(last_page + 1, (segment + 1) * segment_tokens_ / page_tokens_);
    const uint32_t fetch_end_page =
        block_.chosen != nullptr ? end_page : std::min(last_page + 1, end_page + pages_beyond);
    scratch.pages.clear();
    if (block_.chosen != nullptr) {
      gather(scratch, begin_page, end_page);
    } else {
      for (uint32_t page = begin_page; page < fetch_end_page; ++page)
        scratch.pages.push_back(params_.kv.head_page(block_.run, block_.kv_head, page));
    }
    attend({.shape = &layer_.shape,
            .page_tokens = page_tokens_,
            .pages = scratch.pages.data(),
            .begin_page = begin_page,
            .end_page = end_page,
            .fetch_end_page = fetch_end_page,
            .queries = scratch.queries.data(),
            .count = queries_,
            .scale = params_.scale,
            .soft_cap = params_.soft_cap,
            .slopes = !params_.slopes.empty(),
            .max = out.max,
            .sum = out.sum,
            .values = out.values,
            .key_width = query_width,
            .value_width = value_width_,
            .query_lanes = scratch.query_lanes.data(),
            .key_rows = scratch.key_rows.data(),
            .value_rows = scratch.value_rows.data(),
            .scores = scratch.scores.data(),
            .more_scores = goes_on ? scratch.scores.data() + page_scores : nullptr});
  }

  void finish(size_t q, const Softmax& all) const {
    if (params_.sinks) {
      const float sink = params_.sinks.vector()[head(q)];
      if (sink > all.max[q]) all.rescale(q, sink);
      all.sum[q] += exp4(all4(sink - all.max[q]))[0];
    }
    const size_t token = block_.first_token + q / block_.heads;
    float* out = params_.out.f32.row(token) + head(q) * layer_.shape.value_dim;
    const float* row = all.values + q * value_width_;
    for (size_t i = 0; i < layer_.shape.value_dim; ++i) out[i] = row[i] / all.sum[q];
    if (is_turned(layer_.shape.value_format)) turn_kv_row({out, layer_.shape.value_dim});
  }

 private:
  // Chosen rows become pages, as if there were no others.
  void gather(Scratch& scratch, uint32_t begin_page, uint32_t end_page) const {
    scratch.gathered.resize((end_page - begin_page) * layer_.head_bytes + kReadBeyond);
    for (uint32_t page = begin_page; page < end_page; ++page) {
      std::byte* to = scratch.gathered.data() + (page - begin_page) * layer_.head_bytes;
      scratch.pages.push_back(to);
      const uint32_t first = page * page_tokens_, count = std::min(page_tokens_, params_.most - first);
      for (uint32_t r = 0; r < count; ++r) {
        const uint32_t from = block_.chosen[first + r];
        std::memcpy(to + r * layer_.key_row_bytes, params_.kv.key_row(block_.run, block_.kv_head, from),
                    layer_.key_row_bytes);
        std::memcpy(to + page_tokens_ * layer_.key_row_bytes + r * layer_.value_row_bytes,
                    params_.kv.value_row(block_.run, block_.kv_head, from), layer_.value_row_bytes);
      }
    }
  }

  // By its place among the rows that it attends to.
  uint32_t row(uint32_t token) const {
    if (block_.chosen != nullptr) return params_.most - 1;
    return params_.kv.head_row(block_.run, block_.kv_head,
                               batch_.runs[block_.run].row_of(block_.first_token + token));
  }
  size_t head(size_t query) const { return block_.first_head + query % block_.heads; }

  uint32_t first_visible(uint32_t row) const {
    const uint32_t window = layer_.shape.window, chunk = params_.chunk;
    const uint32_t first = window == 0 || row < window ? 0 : row + 1 - window;
    return chunk == 0 ? first : std::max(first, row / chunk * chunk);
  }

  void list_queries(std::vector<AttendQuery>& queries) const {
    queries.clear();
    for (size_t q = 0; q < queries_; ++q) {
      const uint32_t token = uint32_t(q / block_.heads);
      queries.push_back({params_.query.row(block_.first_token + token) + head(q) * layer_.shape.query_dim(),
                         first_visible(row(token)), row(token) + 1,
                         params_.slopes.empty() ? 0.0f : params_.slopes[head(q)]});
    }
  }

  const AttendParams& params_;
  const BatchView& batch_;
  const KvLayerLayout& layer_;
  const uint32_t page_tokens_;
  const Block block_;
  const uint32_t segment_tokens_;
  const size_t queries_;
  const size_t key_width_, value_width_;
};

std::vector<Block> attention_blocks(const AttendParams& params, const BatchView& batch, size_t threads) {
  const KvLayerShape& shape = params.kv.layer->shape;
  const uint32_t heads_per_kv = params.heads / shape.kv_heads;
  const bool few = batch.tokens.size() * shape.kv_heads < 2 * threads;
  std::vector<Block> blocks;
  for (uint32_t r = 0; r < batch.runs.size(); ++r) {
    const TokenRun& run = batch.runs[r];
    uint32_t choosing = run.count;  // tokens from here on see more than they attend to
    if (params.most > 0) {
      const uint32_t row = params.kv.head_row(r, 0, run.row_of(run.begin));
      choosing = row >= params.most ? 0 : std::min(run.count, params.most - row);
    }
    for (uint32_t t = run.count; t > choosing; --t) {
      const uint32_t token = run.begin + t - 1, most = few ? kChosenBlockHeads : kMostBlockQueries;
      for (uint32_t i = 0; i < heads_per_kv; i += most)
        blocks.push_back({r, token, 1, 0, i, std::min(most, heads_per_kv - i),
                          params.chosen.data() + size_t(token) * params.most});
    }
    // The last first: they see the most, and no thread should begin such a block when the others are done.
    for (uint32_t left = choosing; left > 0;) {
      const uint32_t begin = (left - 1) / kQueryBlock * kQueryBlock, tokens = left - begin;
      left = begin;
      const uint32_t most = std::max(kLeastBlockHeads, few ? 0 : kMostBlockQueries / tokens);
      for (uint32_t h = 0; h < shape.kv_heads; ++h) {
        for (uint32_t i = 0; i < heads_per_kv; i += most)
          blocks.push_back(
              {r, run.begin + begin, tokens, h, h * heads_per_kv + i, std::min(most, heads_per_kv - i)});
      }
    }
  }
  return blocks;
}

// The whole context of a block, segment after segment.
void attend_block(const BlockAttention& block, void (*attend)(const AttendArgs& args)) {
  thread_local SoftmaxRoom room;
  room.resize(2, round_up(block.queries(), kAttendLanes), block.value_width());
  const Softmax all = room[0], later = room[1];
  block.compute_segment(block.first_segment(), attend, all, kPagesBeyond);
  for (uint32_t s = block.first_segment() + 1; s <= block.last_segment(); ++s) {
    block.compute_segment(s, attend, later, kPagesBeyond);
    for (size_t q = 0; q < block.queries(); ++q) all.join(q, later);
  }
  for (size_t q = 0; q < block.queries(); ++q) block.finish(q, all);
}

// Blocks too few for all threads: their segments apart, then joined in order, query by query. What the segments came to lies in
// the caches of other cores, and one thread alone would fetch it for as long as they all took to compute it.
void attend_pieces(std::span<const BlockAttention> blocks, void (*attend)(const AttendArgs& args),
                   ThreadPool& pool) {
  struct Piece {
    size_t block;
    uint32_t segment;
  };
  struct Query {
    size_t block, query, first_piece;
  };
  std::vector<Piece> pieces;
  std::vector<Query> queries;
  size_t most = 0;
  for (size_t b = 0; b < blocks.size(); ++b) {
    most = std::max(most, blocks[b].queries());
    for (size_t q = 0; q < blocks[b].queries(); ++q) queries.push_back({b, q, pieces.size()});
    for (uint32_t s = blocks[b].first_segment(); s <= blocks[b].last_segment(); ++s) pieces.push_back({b, s});
  }
  thread_local SoftmaxRoom caller_room;
  SoftmaxRoom& room = caller_room;  // of this thread, in all of them
  room.resize(pieces.size(), round_up(most, kAttendLanes), blocks[0].value_width());
  pool.parallel_for(pieces.size(), 1, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i)
      blocks[pieces[i].block].compute_segment(pieces[i].segment, attend, room[i], 0);
  });
  pool.parallel_for(queries.size(), 1, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      const auto [block, query, first] = queries[i];
      for (size_t p = first + 1; p < pieces.size() && pieces[p].block == block; ++p)
        room[first].join(query, room[p]);
      blocks[block].finish(query, room[first]);
    }
  });
}

}  // namespace

void CpuBackend::attend(const AttendParams& params) {
  const KvLayerShape& shape = params.kv.layer->shape;
  CHECK(params.heads % shape.kv_heads == 0 && params.query.width == params.heads * shape.query_dim());
  CHECK(params.out.f32.width == params.heads * shape.value_dim);
  CHECK(params.slopes.empty() || params.slopes.size() == params.heads);
  CHECK(params.kv.group->layout->page_tokens % 4 == 0 &&
        kSegmentTokens % params.kv.group->layout->page_tokens == 0);
  CHECK(params.most == 0 || (shape.kv_heads == 1 && shape.window == 0 && params.chunk == 0 && !params.sinks &&
                             params.chosen.size() >= params.query.rows * params.most));
  const std::vector<Block> blocks = attention_blocks(params, batch_, pool_.size());
  if (blocks.size() >= 2 * pool_.size()) {
    pool_.parallel_for(blocks.size(), 1, [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) attend_block({params, batch_, blocks[i]}, kernels_.attend);
    });
  } else if (!blocks.empty()) {
    std::vector<BlockAttention> attention;
    for (const Block& block : blocks) attention.emplace_back(params, batch_, block);
    attend_pieces(attention, kernels_.attend, pool_);
  }
  pool_.parallel_for(params.out.f32.rows, 1, [&](size_t begin, size_t end) {
    for (size_t t = begin; t < end; ++t) quantize(params.out, t);
  });
}

}  // namespace quire
