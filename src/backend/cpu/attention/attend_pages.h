// Attention over pages for one instruction set. Included by files that are compiled for different ones, so nothing here
// may have a name that the linker sees, and nothing of the standard library that is more than a constant.
#pragma once

#include "backend/cpu/attention/attend_keys.h"

namespace quire {
namespace {

template <class Isa>
class PagesAttention {
 public:
  explicit PagesAttention(const AttendArgs& args)
      : args_(args),
        shape_(*args.shape),
        scores_(args.scores),
        key_(shape_.key_format, shape_.key_dim, args.page_tokens, few()),
        more_key_(shape_.value_format, shape_.value_dim, args.page_tokens, few()),
        value_format_(shape_.value_format) {
    reads_values_ = shape_.value_dim % kAttendLanes == 0 && has_values(value_format_) &&
                    (value_format_ == KvFormat::f32 || few());
    rounds_shares_ = Isa::kRoundsToBf16 && value_format_ == KvFormat::bf16;
    multiplies_values_ = more_key_.multiplies();
    reads_values_ |= multiplies_values_;
    if (shape_.key_goes_on) reads_values_ &= more_key_.reads();
    sums_values_ = more_key_.sums();
  }

  void run() {
    if (args_.index_weights != nullptr) return score_index();
    for (size_t q = 0; q < (args_.count + kAttendLanes - 1) / kAttendLanes * kAttendLanes; ++q) {
      args_.max[q] = kNoScore;
      args_.sum[q] = 0.0f;
    }
    std::memset(args_.values, 0, args_.count * args_.value_width * sizeof(float));
    begin_bf16();
    for_each_tile([&]<size_t N>(const QueryTile<N>& tile) { gather(tile); });
    for (uint32_t p = args_.begin_page; p < args_.end_page; ++p) {
      const Page page = open(p);
      for_each_tile([&]<size_t N>(const QueryTile<N>& tile) { add_page(tile, page); });
    }
    if (value_format_ == KvFormat::fp8) {
      for (size_t i = 0; i < args_.count * args_.value_width; ++i) args_.values[i] *= kFp8Back;
    }
    if constexpr (Bf16::kPresent) {
      if (key_.multiplies() || multiplies_values_) Bf16::end();
      for (size_t q = 0; multiplies_values_ && q < args_.count; ++q)
        Bf16::put_in_order(args_.values + q * args_.value_width, shape_.value_dim);
    }
  }

 private:
  using Bf16 = typename Isa::Bf16;

  void begin_bf16() const {
    if constexpr (Bf16::kPresent) {
      if (key_.multiplies() || multiplies_values_) {
        const size_t page_bytes = args_.page_tokens * (key_.row_bytes() + more_key_.row_bytes());
        Bf16::begin(args_.count, args_.pages[0], args_.begin_page < args_.end_page ? page_bytes : 0);
      }
    }
  }

  // What the heads of an index make of each row, together.
  void score_index() {
    begin_bf16();
    for_each_tile([&]<size_t N>(const QueryTile<N>& tile) { gather(tile); });
    float* sums = args_.more_scores;  // [rows of the page, 4]
    for (uint32_t p = args_.begin_page; p < args_.end_page; ++p) {
      const Page page = open(p);
      std::memset(sums, 0, args_.page_tokens * 4 * sizeof(float));
      for_each_tile([&]<size_t N>(const QueryTile<N>& tile) {
        const PageScores<N> scores{scores_, 0, args_.page_tokens};
        score(tile, page, scores);
        add_to_index<Isa>(scores, args_.page_tokens, args_.index_weights + tile.first, tile.live, sums);
      });
      float* out = args_.index_scores + size_t(p - args_.begin_page) * args_.page_tokens;
      for (size_t r = 0; r < args_.page_tokens; ++r, sums += 4)
        out[r] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
      sums = args_.more_scores;
    }
    if constexpr (Bf16::kPresent) {
      if (key_.multiplies() || multiplies_values_) Bf16::end();
    }
  }

  static constexpr size_t kDirectTiles = 2;  // for more, a page is unpacked once

  struct Page {
    uint32_t begin;  // its first position
    PageRows keys, values;
    const std::byte *key_scales, *value_scales;  // of fp8: of the first row
  };

  template <class Use>
  ALWAYS_INLINE void for_each_tile(Use use) {
    for (size_t q = 0; q < args_.count;) {
      const size_t left = args_.count - q;
      if constexpr (Isa::kLanes >= 16) {
        if (left > 8 || (Bf16::kPresent && args_.count > 8)) {  // tiles of one shape in a call
          use(QueryTile<16>{q, left < 16 ? left : 16});
          q += 16;
          continue;
        }
      }
      if constexpr (Isa::kLanes >= 8) {
        if (left > 4) {
          use(QueryTile<8>{q, left < 8 ? left : 8});
          q += 8;
          continue;
        }
      }
      use(QueryTile<4>{q, left < 4 ? left : 4});
      q += 4;
    }
  }

  bool few() const { return (args_.count + Isa::kLanes - 1) / Isa::kLanes <= kDirectTiles; }

  template <size_t N>
  void gather(const QueryTile<N>& tile) {
    const auto row_of = [&](size_t lane) {
      return args_.queries[tile.first + (lane < tile.live ? lane : tile.live - 1)].row;
    };
    if (key_.dim() > 0) key_.template gather<N>(row_of, args_.scale, queries_of(tile));
    if (!shape_.key_goes_on) return;
    more_key_.template gather<N>([&](size_t lane) { return row_of(lane) + shape_.key_dim; }, args_.scale,
                                 more_queries_of(tile));
  }

  template <size_t N>
  float* queries_of(const QueryTile<N>& tile) const {
    return args_.query_lanes + tile.first * args_.key_width;
  }
  template <size_t N>
  float* more_queries_of(const QueryTile<N>& tile) const {
    return queries_of(tile) + N * key_.width();
  }

  Page open(uint32_t index) {
    const std::byte* const* at = args_.pages + (index - args_.begin_page);
    constexpr size_t kLater = Isa::Fetch::kPagesAhead;
    const ptrdiff_t ahead = index + kLater < args_.fetch_end_page ? at[kLater] - at[0] : 0;
    const std::byte* values = at[0] + args_.page_tokens * key_.row_bytes();
    Page page{.begin = index * args_.page_tokens,
              .keys = {at[0], key_.row_bytes(), key_.format(), ahead},
              .values = {values, more_key_.row_bytes(), value_format_, ahead},
              .key_scales = at[0] + shape_.key_dim,
              .value_scales = values + shape_.value_dim};
    uint32_t end = 0;
    for (size_t q = 0; q < args_.count; ++q) end = args_.queries[q].end > end ? args_.queries[q].end : end;
    const uint32_t left = end < page.begin ? 0 : end - page.begin;
    const size_t rows = left < args_.page_tokens ? left : args_.page_tokens;
    if (!key_.reads() && !key_.sums())
      unpack_rows<Isa>(page.keys, rows, shape_.key_dim, key_.width(), args_.key_rows);
    if (!reads_values_ && !sums_values_)
      unpack_rows<Isa>(page.values, rows, shape_.value_dim, args_.value_width, args_.value_rows);
    return page;
  }

  template <size_t N>
  void add_page(const QueryTile<N>& tile, const Page& page) {
    const bool is_scored = scores_ahead<N>();
    fetch_quarter(tile, page, 0);
    if (is_scored) score_ahead(tile, page);
    fetch_quarter(tile, page, 1);
    const Sight<N> sight = see_page(args_.queries, tile, page.begin, args_.page_tokens);
    if (sight.least >= sight.most) return;
    const size_t begin = size_t(sight.least) / 4 * 4, end = (size_t(sight.most) + 3) / 4 * 4;
    const PageScores<N> scores{scores_, begin, end};
    if (!is_scored) score(tile, page, scores);
    if (args_.soft_cap > 0) cap_scores<Isa>(scores, args_.soft_cap);
    if (args_.slopes) lean(tile, page, scores);
    if (!sight.same || begin != size_t(sight.least) || end != size_t(sight.most)) hide_rows(scores, sight);
    const RunningSoftmax softmax{args_.max + tile.first, args_.sum + tile.first,
                                 args_.values + tile.first * args_.value_width, args_.value_width, tile.live};
    take_shares<Isa>(scores, softmax, rounds_shares_);
    fetch_quarter(tile, page, 2);
    if (value_format_ == KvFormat::fp8)
      scale_rows(scores, page.value_scales, more_key_.row_bytes(), Isa::kFp8Factor);
    fetch_quarter(tile, page, 3);
    if (multiplies_values_) {
      add_values_as_bf16(tile, sight, page.values, begin, end);
    } else if (sums_values_) {
      add_values_as_integers(tile, sight, page.values, begin, end);
    } else {
      FloatValues<Isa, N>(page.values, scores_, softmax).add(sight);
    }
  }

  // Of a page that comes later, to the second-level cache.
  template <size_t N>
  ALWAYS_INLINE void fetch_quarter(const QueryTile<N>& tile, const Page& page, size_t quarter) const {
    if constexpr (Bf16::kPagesAhead > 0) {
      const size_t later = page.begin / args_.page_tokens + Bf16::kPagesAhead;
      if (tile.first != 0 || later >= args_.end_page || !(key_.multiplies() || multiplies_values_)) return;
      const size_t bytes = args_.page_tokens * (key_.row_bytes() + more_key_.row_bytes()) / 4;
      const std::byte* from = args_.pages[later - args_.begin_page] + quarter * bytes;
      for (size_t i = 0; i < bytes; i += 64) fetch_line<typename Bf16::Fetch>(from + i);
    }
  }

  // Whether the keys of a page are multiplied before the values of the page before it. Between those two a few queries leave
  // nothing to do but to wait.
  template <size_t N>
  bool scores_ahead() const {
    return N <= kAttendLanes / 2 && args_.count <= N && key_.multiplies() && multiplies_values_ &&
           !shape_.key_goes_on;
  }

  // There is room for the scores of two pages.
  template <size_t N>
  void score_ahead(const QueryTile<N>& tile, const Page& page) {
    const uint32_t index = page.begin / args_.page_tokens;
    const auto room = [&](uint32_t p) { return args_.scores + p % 2 * args_.page_tokens * N; };
    const auto score_all = [&](const Page& any) {
      score(tile, any, PageScores<N>{scores_, 0, args_.page_tokens});
    };
    scores_ = room(index);
    if (index == args_.begin_page) score_all(page);
    if (index + 1 == args_.end_page) return;
    scores_ = room(index + 1);
    score_all(open(index + 1));
    scores_ = room(index);
  }

  // A page is fetched ahead once.
  template <size_t N>
  static PageRows rows_for(const QueryTile<N>& tile, const PageRows& rows) {
    return {rows.bytes, rows.row_bytes, rows.format, tile.first == 0 ? rows.ahead : 0};
  }

  template <size_t N>
  void score(const QueryTile<N>& tile, const Page& page, const PageScores<N>& scores) {
    PageRows more = page.values;
    more.ahead = 0;       // they are fetched where they are values
    if (key_.dim() == 0)  // a key is its value's row alone
      return more_key_.template score<N>(more_queries_of(tile), more, page.value_scales, scores);
    const PageRows keys = key_.multiplies() ? rows_for(tile, page.keys) : page.keys;
    key_.template score<N>(queries_of(tile), keys, page.key_scales, scores);
    if (!shape_.key_goes_on) return;
    const PageScores<N> rest{args_.more_scores, scores.begin, scores.end};
    more_key_.template score<N>(more_queries_of(tile), more, page.value_scales, rest);
    for (size_t r = scores.begin; r < scores.end; ++r)
      store_lanes(load_lanes<Floats<N>>(scores.row(r)) + load_lanes<Floats<N>>(rest.row(r)), scores.row(r));
  }

  template <size_t N>
  __attribute__((noinline)) void lean(const QueryTile<N>& tile, const Page& page,
                                      const PageScores<N>& scores) const {
    Floats<N> slopes;
    Ints<N> behind;
    for (size_t lane = 0; lane < N; ++lane) {
      const AttendQuery& query = args_.queries[tile.first + (lane < tile.live ? lane : tile.live - 1)];
      slopes[lane] = query.slope;
      behind[lane] = int32_t(query.end - 1) - int32_t(page.begin);
    }
    lean_scores<Isa>(scores, slopes, behind);
  }

  // The rows of a page are multiplied with the shares of all lanes, those that a lane does not see with 0. That is 0 if they are
  // numbers; if not, which is rare, each lane gets a copy without them.
  template <size_t N>
  void add_values_as_bf16(const QueryTile<N>& tile, const Sight<N>& sight, const PageRows& page_rows,
                          size_t begin, size_t end) {
    if constexpr (Bf16::kPresent) {
      PageRows rows = rows_for(tile, page_rows);
      const size_t least = size_t(sight.least), most = size_t(sight.most), dim = shape_.value_dim;
      std::memset(scores_, 0, begin * N * sizeof(float));
      std::memset(scores_ + end * N, 0, (args_.page_tokens - end) * N * sizeof(float));
      const bool finite = sight.same || all_finite(rows, least, most, dim);
      if (least != 0 || most != args_.page_tokens)
        rows = clear_others(rows, least, most, args_.page_tokens, args_.value_rows);
      float* out = args_.values + tile.first * args_.value_width;
      if (finite) return Bf16::template add_values<N>(scores_, rows, dim, out, args_.value_width);
      add_values_by_lane(tile, sight, page_rows, out);
    }
  }

  template <size_t N>
  __attribute__((noinline)) void add_values_by_lane(const QueryTile<N>& tile, const Sight<N>& sight,
                                                    const PageRows& page_rows, float* out) {
    constexpr size_t kMost = kMostBf16Dim;
    float before[N * kMost], after[N * kMost];
    const size_t width = args_.value_width, bytes = width * sizeof(float);
    std::memcpy(before, out, tile.live * bytes);
    for (size_t lane = 0; lane < tile.live; ++lane) {
      const bool sees = sight.begin[lane] < sight.end[lane];
      const PageRows rows =
          clear_others(page_rows, sees ? size_t(sight.begin[lane]) : 0, sees ? size_t(sight.end[lane]) : 0,
                       args_.page_tokens, args_.value_rows);
      std::memcpy(out, before, tile.live * bytes);
      Bf16::template add_values<N>(scores_, rows, shape_.value_dim, out, width);
      std::memcpy(after + lane * width, out + lane * width, bytes);
    }
    std::memcpy(out, after, tile.live * bytes);
  }

  template <size_t N>
  void add_values_as_integers(const QueryTile<N>& tile, const Sight<N>& sight, const PageRows& rows,
                              size_t begin, size_t end) {
    const std::byte* at = rows.bytes + begin * rows.row_bytes;
    for (size_t q = 0; q < tile.live; q += 4) {
      const float* shares = scores_ + begin * N + q;
      const size_t blocks = (end - begin) / 4, live = tile.live - q < 4 ? tile.live - q : 4;
      const ptrdiff_t ahead = q == 0 ? rows.ahead : 0;
      float* values = args_.values + (tile.first + q) * args_.value_width;
      if (rows.format == KvFormat::int8) {
        if (takes_tiles<Isa>(shape_.value_dim) && tile.live - q > 4) {
          add_code_tile<Isa>(shares, N, at, rows.row_bytes, blocks, shape_.value_dim,
                             tile.live - q < 8 ? tile.live - q : 8, ahead, args_.value_rows, values,
                             args_.value_width);
          q += 4;
          continue;
        }
        add_code_values<Isa>(shares, N, at, rows.row_bytes, blocks, shape_.value_dim, live, ahead,
                             args_.value_rows, values, args_.value_width);
        continue;
      }
      int32_t first[4], last[4];
      bool all_seen = true;
      for (size_t i = 0; i < 4; ++i) {
        first[i] = sight.begin[q + i] - int32_t(begin);
        last[i] = sight.end[q + i] - int32_t(begin);
        all_seen &= first[i] == 0 && last[i] == int32_t(end - begin);
      }
      const NibbleShares under{shares, N, blocks, all_seen ? nullptr : first, last, ahead};
      add_nibble_values<Isa>(under, {at, rows.row_bytes, shape_.value_dim}, live, args_.value_rows, values,
                             args_.value_width);
    }
  }

  const AttendArgs& args_;
  const KvLayerShape& shape_;
  float* scores_;                // [page_tokens, lanes] of a page, in args_.scores
  KeyPart<Isa> key_, more_key_;  // of the values' rows: where a key goes on there, and how they are read
  KvFormat value_format_;
  bool reads_values_;       // value by value, straight from the page
  bool sums_values_;        // codes, as integers
  bool rounds_shares_;      // to bf16
  bool multiplies_values_;  // as bf16
};

}  // namespace
}  // namespace quire
