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
// Of pages that gathered rows become, where pages have too few rows for kernels.
constexpr uint32_t kGatheredRows = 32;

size_t round_up(size_t n, size_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

// A block of queries: some tokens of one run, some of the query heads of one KV head.
struct Block {
  uint32_t run, first_token, tokens, kv_head, first_head, heads;
  // Of one token: it attends to these rows alone, of the rows that are chosen from; or to these blocks of rows.
  const uint32_t* chosen = nullptr;
};

// Where rows are that a token may choose from.
const KvView& chosen_from(const AttendParams& params) {
  return params.beside.layer != nullptr ? params.beside : params.kv;
}

// What a thread works in; it grows and stays.
struct Scratch {
  std::vector<AttendQuery> queries;
  std::vector<const std::byte*> pages;
  std::vector<float> query_lanes, key_rows, value_rows, scores;
  std::vector<std::byte> gathered;
};

// A block's attention to the rows of one stream.
class BlockAttention {
 public:
  BlockAttention(const AttendParams& params, const KvView& kv, const BatchView& batch, const Block& block)
      : params_(params),
        kv_(kv),
        batch_(batch),
        layer_(*kv.layer),
        page_rows_(layer_.page_rows % 4 == 0 ? layer_.page_rows : kGatheredRows),
        block_(block),
        chosen_(&kv == &chosen_from(params) ? block.chosen : nullptr),
        gathers_((chosen_ != nullptr && params.block == 0) || page_rows_ != layer_.page_rows),
        segment_tokens_(segment_tokens(layer_.shape)),
        queries_(block.tokens * block.heads),
        key_width_(round_up(layer_.shape.key_dim, kAttendLanes)),
        value_width_(round_up(layer_.shape.value_dim, kAttendLanes)) {}

  static uint32_t segment_tokens(const KvLayerShape& shape) {
    return shape.key_goes_on ? kLatentSegmentTokens : kSegmentTokens;
  }
  uint32_t first_segment() const { return first_visible(0) / segment_tokens_; }
  // Of rows of several tokens there may be none.
  uint32_t end_segment() const { return (end(block_.tokens - 1) + segment_tokens_ - 1) / segment_tokens_; }

  size_t queries() const { return queries_; }
  size_t value_width() const { return value_width_; }

  // `pages_beyond`: so many pages after the segment are what this thread reads next.
  void compute_segment(uint32_t segment, void (*attend)(const AttendArgs& args), const Softmax& out,
                       uint32_t pages_beyond) const {
    thread_local Scratch scratch;
    const bool goes_on = layer_.shape.key_goes_on;
    const size_t query_width = key_width_ + (goes_on ? value_width_ : 0);
    const size_t page_scores = (page_rows_ + 1) * kAttendLanes;
    scratch.query_lanes.resize(round_up(queries_, kAttendLanes) * query_width);
    scratch.key_rows.resize(page_rows_ * (key_width_ + kRowGap));
    scratch.value_rows.resize(page_rows_ * (value_width_ + kRowGap));
    scratch.scores.resize((goes_on ? 2 : 1) * page_scores);
    list_queries(scratch.queries);
    const uint32_t begin = std::max(first_visible(0), segment * segment_tokens_);
    const uint32_t begin_page = begin / page_rows_, last_page = (end(block_.tokens - 1) - 1) / page_rows_;
    const uint32_t end_page = std::min(last_page + 1, (segment + 1) * segment_tokens_ / page_rows_);
    const uint32_t fetch_end_page = gathers_ ? end_page : std::min(last_page + 1, end_page + pages_beyond);
    scratch.pages.clear();
    if (gathers_) {
      gather(scratch, begin_page, end_page);
    } else {
      for (uint32_t page = begin_page; page < fetch_end_page; ++page)
        scratch.pages.push_back(kv_.head_page(block_.run, block_.kv_head, page_at(page)));
    }
    attend({.shape = &layer_.shape,
            .page_tokens = page_rows_,
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
  // Of chosen blocks the pages follow each other as if there were no others.
  uint32_t page_at(uint32_t page) const {
    if (chosen_ == nullptr) return page;
    const uint32_t pages = params_.block / page_rows_;
    return chosen_[page / pages] * pages + page % pages;
  }

  // Chosen rows become pages, as if there were no others; or all rows do.
  void gather(Scratch& scratch, uint32_t begin_page, uint32_t end_page) const {
    const size_t page_bytes = page_rows_ * (layer_.key_row_bytes + layer_.value_row_bytes);
    const uint32_t all = end(block_.tokens - 1);
    scratch.gathered.resize((end_page - begin_page) * page_bytes + kReadBeyond);
    for (uint32_t page = begin_page; page < end_page; ++page) {
      std::byte* to = scratch.gathered.data() + (page - begin_page) * page_bytes;
      scratch.pages.push_back(to);
      const uint32_t first = page * page_rows_, count = std::min(page_rows_, all - first);
      for (uint32_t r = 0; r < count; ++r) {
        const uint32_t from = chosen_ != nullptr ? chosen_[first + r] : first + r;
        std::memcpy(to + r * layer_.key_row_bytes, kv_.key_row(block_.run, block_.kv_head, from),
                    layer_.key_row_bytes);
        std::memcpy(to + page_rows_ * layer_.key_row_bytes + r * layer_.value_row_bytes,
                    kv_.value_row(block_.run, block_.kv_head, from), layer_.value_row_bytes);
      }
    }
  }

  // How many rows there are up to the token, its own included; or that it has chosen.
  uint32_t end(uint32_t token) const {
    if (chosen_ != nullptr && params_.block == 0) return params_.most;
    const uint32_t row =
        kv_.head_row(block_.run, block_.kv_head, batch_.runs[block_.run].row_of(block_.first_token + token));
    if (chosen_ != nullptr) return (params_.most - 1) * params_.block + row % params_.block + 1;
    return (row + 1) / layer_.shape.stride;
  }
  size_t head(size_t query) const { return block_.first_head + query % block_.heads; }

  uint32_t first_visible(uint32_t token) const {
    const uint32_t window = layer_.shape.window, chunk = &kv_ == &params_.kv ? params_.chunk : 0;
    if (window == 0 && chunk == 0) return 0;
    const uint32_t row = end(token) - 1;
    const uint32_t first = window == 0 || row < window ? 0 : row + 1 - window;
    return chunk == 0 ? first : std::max(first, row / chunk * chunk);
  }

  void list_queries(std::vector<AttendQuery>& queries) const {
    queries.clear();
    for (size_t q = 0; q < queries_; ++q) {
      const uint32_t token = uint32_t(q / block_.heads);
      queries.push_back({params_.query.row(block_.first_token + token) + head(q) * layer_.shape.query_dim(),
                         first_visible(token), end(token),
                         params_.slopes.empty() ? 0.0f : params_.slopes[head(q)]});
    }
  }

  const AttendParams& params_;
  const KvView& kv_;
  const BatchView& batch_;
  const KvLayerLayout& layer_;
  const uint32_t page_rows_;  // as kernels see them
  const Block block_;
  const uint32_t* chosen_;  // of these rows
  const bool gathers_;
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
      const KvView& from = chosen_from(params);
      const uint64_t row = from.head_row(r, 0, run.row_of(run.begin));
      const uint64_t first = params.block > 0  // that chooses
                                 ? uint64_t(params.most) * params.block
                                 : (uint64_t(params.most) + 1) * from.layer->shape.stride - 1;
      choosing = row >= first ? 0 : uint32_t(std::min<uint64_t>(run.count, first - row));
    }
    for (uint32_t t = run.count; t > choosing; --t) {
      const uint32_t token = run.begin + t - 1, most = few ? kChosenBlockHeads : kMostBlockQueries;
      for (uint32_t h = 0; h < shape.kv_heads; ++h) {
        const uint32_t* chosen = params.chosen.data() + (size_t(token) * shape.kv_heads + h) * params.most;
        for (uint32_t i = 0; i < heads_per_kv; i += most)
          blocks.push_back({r, token, 1, h, h * heads_per_kv + i, std::min(most, heads_per_kv - i), chosen});
      }
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

// A block's attention to what there is for it: one stream, or two.
using BlockStreams = std::span<const BlockAttention>;

// The whole context of a block, segment after segment.
void attend_block(BlockStreams streams, void (*attend)(const AttendArgs& args)) {
  thread_local SoftmaxRoom room;
  const BlockAttention& block = streams.front();
  room.resize(2, round_up(block.queries(), kAttendLanes), block.value_width());
  const Softmax all = room[0], later = room[1];
  block.compute_segment(block.first_segment(), attend, all, kPagesBeyond);
  for (const BlockAttention& stream : streams) {
    const uint32_t begin = stream.first_segment() + (&stream == &block ? 1 : 0);
    for (uint32_t s = begin; s < stream.end_segment(); ++s) {
      stream.compute_segment(s, attend, later, kPagesBeyond);
      for (size_t q = 0; q < block.queries(); ++q) all.join(q, later);
    }
  }
  for (size_t q = 0; q < block.queries(); ++q) block.finish(q, all);
}

// Blocks too few for all threads: their segments apart, then joined in order, query by query. What the segments came to lies in
// the caches of other cores, and one thread alone would fetch it for as long as they all took to compute it.
void attend_pieces(std::span<const BlockAttention> attention, size_t streams,
                   void (*attend)(const AttendArgs& args), ThreadPool& pool) {
  struct Piece {
    size_t block, stream;
    uint32_t segment;
  };
  struct Query {
    size_t block, query, first_piece;
  };
  std::vector<Piece> pieces;
  std::vector<Query> queries;
  size_t most = 0;
  for (size_t b = 0; b * streams < attention.size(); ++b) {
    const size_t count = attention[b * streams].queries();
    most = std::max(most, count);
    for (size_t q = 0; q < count; ++q) queries.push_back({b, q, pieces.size()});
    for (size_t i = b * streams; i < (b + 1) * streams; ++i) {
      for (uint32_t s = attention[i].first_segment(); s < attention[i].end_segment(); ++s)
        pieces.push_back({b, i, s});
    }
  }
  thread_local SoftmaxRoom caller_room;
  SoftmaxRoom& room = caller_room;  // of this thread, in all of them
  room.resize(pieces.size(), round_up(most, kAttendLanes), attention[0].value_width());
  pool.parallel_for(pieces.size(), 1, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i)
      attention[pieces[i].stream].compute_segment(pieces[i].segment, attend, room[i], 0);
  });
  pool.parallel_for(queries.size(), 1, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      const auto [block, query, first] = queries[i];
      for (size_t p = first + 1; p < pieces.size() && pieces[p].block == block; ++p)
        room[first].join(query, room[p]);
      attention[block * streams].finish(query, room[first]);
    }
  });
}

}  // namespace

void CpuBackend::attend(const AttendParams& params) {
  tapped_keys_.layer = nullptr;
  const KvLayerShape& shape = params.kv.layer->shape;
  CHECK(params.heads % shape.kv_heads == 0 && params.query.width == params.heads * shape.query_dim());
  CHECK(params.out.f32.width == params.heads * shape.value_dim);
  CHECK(params.slopes.empty() || params.slopes.size() == params.heads);
  CHECK(shape.stride == 1 && params.kv.layer->page_rows % 4 == 0 &&
        kSegmentTokens % params.kv.layer->page_rows == 0);
  const bool both = params.beside.layer != nullptr;
  const KvLayerShape& choice = chosen_from(params).layer->shape;
  CHECK(params.most == 0 ||
        ((choice.kv_heads == 1 || params.block > 0) && choice.window == 0 && (both || params.chunk == 0) &&
         params.chosen.size() >= params.query.rows * choice.kv_heads * params.most));
  CHECK(params.block == 0 || (params.most > 0 && !both && params.block % params.kv.layer->page_rows == 0));
  CHECK(!both || (choice.kv_heads == shape.kv_heads && choice.key_dim == shape.key_dim &&
                  choice.value_dim == shape.value_dim && choice.key_format == shape.key_format &&
                  choice.value_format == shape.value_format && choice.key_goes_on == shape.key_goes_on &&
                  choice.window == 0 && params.slopes.empty()));
  const std::vector<Block> blocks = attention_blocks(params, batch_, pool_.size());
  std::vector<BlockAttention> attention;
  attention.reserve(blocks.size() * (both ? 2 : 1));
  for (const Block& block : blocks) {
    attention.emplace_back(params, params.kv, batch_, block);
    if (both) attention.emplace_back(params, params.beside, batch_, block);
  }
  const size_t streams = both ? 2 : 1;
  if (blocks.size() >= 2 * pool_.size()) {
    pool_.parallel_for(blocks.size(), 1, [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i)
        attend_block(std::span(attention).subspan(i * streams, streams), kernels_.attend);
    });
  } else if (!blocks.empty()) {
    attend_pieces(attention, streams, kernels_.attend, pool_);
  }
  pool_.parallel_for(params.out.f32.rows, 1, [&](size_t begin, size_t end) {
    for (size_t t = begin; t < end; ++t) quantize(params.out, t);
  });
}

}  // namespace quire
