// Attention to rows of int8 without making floats of them, for one instruction set. Included by files that are compiled for
// different ones, so nothing here may have a name that the linker sees, and nothing of the standard library that is code.
#pragma once

#include "backend/cpu/attention/attend_lanes.h"
#include "backend/cpu/attention/kv_codes.h"

namespace quire {
namespace {

constexpr size_t kChunk = 16;                    // codes that are taken at once
constexpr size_t kPackedBytes = 4 * 2 * kChunk;  // sixteen numbers of 16 bits for each of four queries
constexpr size_t kMostCodes = 1024;              // of a row: the sums of longer ones could overflow
constexpr float kSteps = 127 * 128;        // numbers of 16 bits are split in two of 8, each in -127..127
constexpr float kLeastScaled = 0x1p-100f;  // what is smaller counts as 0
constexpr float kInfinity = __builtin_inff();

// Whether rows of such a format and size are summed as integers (attend.h). Others become floats.
constexpr bool sums_codes(KvFormat format, size_t dim) {
  if (dim > kMostCodes) return false;
  if (format == KvFormat::int8) return dim % kChunk == 0;
  return (format == KvFormat::q4 || format == KvFormat::q4_plain) && dim % kKvGroup == 0;
}

// The integer nearest to a number that 16 bits can hold; of any other some integer.
ALWAYS_INLINE int16_t nearest16(float x) {
  return int16_t(uint16_t(bits_as<uint32_t>(x + 0x1.8p23f)));
}

// A query, scaled, as `codes` of at most `most_code` times what is returned. A query that is not finite has the step NaN.
inline float query_codes(const float* row, size_t dim, float scale, float most_code, int16_t* codes) {
  float most = 0.0f;
  bool finite = true;
  for (size_t d = 0; d < dim; ++d) {
    const float size = __builtin_fabsf(row[d] * scale);
    finite &= size < kInfinity;
    most = size > most ? size : most;
  }
  const bool some = finite && most > kLeastScaled;
  const float steps = some ? most_code / most : 0.0f;
  for (size_t d = 0; d < dim; ++d) codes[d] = some ? nearest16(row[d] * scale * steps) : int16_t(0);
  return finite ? (some ? most / most_code : 0.0f) : __builtin_nanf("");
}

// The queries of a tile as codes, in the room that their floats would have.
template <size_t N>
struct QueryCodes {
  std::byte* packed;  // [N / 4, chunks, kPackedBytes]
  float* steps;       // [N]

  QueryCodes(float* room, size_t dim)
      : packed(reinterpret_cast<std::byte*>(room)), steps(room + N * dim / 2) {}
};

// What an instruction set does with codes; here in plain loops. Sums of integers are exact: every set gives the same.
struct PlainCodes {
  // Where it is not 0, so many queries are taken at once: dot_tile does for more of them what dot_rows does, and sum_tile for kTileCodes
  // codes what sum_rows does.
  static constexpr size_t kTileQueries = 0;

  // Sixteen codes of one of four queries.
  static void pack_query(const int16_t* codes, size_t lane, std::byte* out) {
    std::memcpy(out + lane * 2 * kChunk, codes, 2 * kChunk);
  }

  // sums[row, query] of four rows with four queries. `packed` are [chunks, kPackedBytes].
  static void dot_rows(const std::byte* packed, const std::byte* rows, size_t row_bytes, size_t chunks,
                       int32_t* sums) {
    std::memset(sums, 0, 16 * sizeof(int32_t));
    for (size_t r = 0; r < 4; ++r, sums += 4) {
      const auto* codes = reinterpret_cast<const int8_t*>(rows + r * row_bytes);
      for (size_t c = 0; c < chunks; ++c) {
        for (size_t lane = 0; lane < 4; ++lane) {
          int16_t other[kChunk];
          std::memcpy(other, packed + c * kPackedBytes + lane * sizeof(other), sizeof(other));
          for (size_t i = 0; i < kChunk; ++i) sums[lane] += codes[c * kChunk + i] * other[i];
        }
      }
    }
  }

  // What the four rows of a block weigh for four queries, [rows][queries] of 16 bits. `out` has 32 bytes for each block, and
  // for whole fours of them.
  static void pack_weights(const Ints<4> (&rows)[4], size_t block, std::byte* out) {
    int16_t weights[4][4];
    for (size_t r = 0; r < 4; ++r) {
      for (size_t lane = 0; lane < 4; ++lane) weights[lane][r] = int16_t(rows[r][lane]);
    }
    std::memcpy(out + block * sizeof(weights), weights, sizeof(weights));
  }

  // sums[query, code] of sixteen codes of 4 * blocks rows under their weights.
  static void sum_rows(const std::byte* weights, const std::byte* rows, size_t row_bytes, size_t blocks,
                       size_t chunk, int32_t* sums) {
    std::memset(sums, 0, 4 * kChunk * sizeof(int32_t));
    for (size_t b = 0; b < blocks; ++b) {
      int16_t weight[4][4];
      std::memcpy(weight, weights + b * sizeof(weight), sizeof(weight));
      for (size_t r = 0; r < 4; ++r) {
        const auto* codes = reinterpret_cast<const int8_t*>(rows + (4 * b + r) * row_bytes) + chunk * kChunk;
        for (size_t lane = 0; lane < 4; ++lane) {
          for (size_t i = 0; i < kChunk; ++i) sums[lane * kChunk + i] += codes[i] * weight[lane][r];
        }
      }
    }
  }
};

// Codes of the queries of a tile, [N], of which `row_of(lane)` says the floats.
template <class Codes, size_t N, class RowOf>
void gather_codes(const QueryCodes<N>& out, size_t dim, float scale, RowOf row_of) {
  const size_t chunks = dim / kChunk;
  for (size_t lane = 0; lane < N; ++lane) {
    int16_t codes[kMostCodes];
    out.steps[lane] = query_codes(row_of(lane), dim, scale, kSteps, codes);
    std::byte* packed = out.packed + lane / 4 * chunks * kPackedBytes;
    for (size_t c = 0; c < chunks; ++c)
      Codes::pack_query(codes + c * kChunk, lane % 4, packed + c * kPackedBytes);
  }
}

// Scores of four rows with N queries, [4, N].
template <class Isa, size_t N>
void score_codes(const QueryCodes<N>& queries, const std::byte* rows, size_t row_bytes, size_t dim,
                 float* scores) {
  if constexpr (Isa::Codes::kTileQueries > 0 && N >= Isa::Codes::kTileQueries) {
    int32_t tile[4 * N];
    Isa::Codes::template dot_tile<N>(queries.packed, rows, row_bytes, dim / kChunk, tile);
    const Floats<N> steps = load_lanes<Floats<N>>(queries.steps);
    for (size_t r = 0; r < 4; ++r) {
      const Floats<N> sum = __builtin_convertvector(load_lanes<Ints<N>>(tile + r * N), Floats<N>);
      store_lanes(sum * read_half(rows + r * row_bytes + dim) * steps, scores + r * N);
    }
    return;
  }
  int32_t sums[16];
  for (size_t q = 0; q < N; q += 4) {
    Isa::Codes::dot_rows(queries.packed + q / 4 * (dim / kChunk) * kPackedBytes, rows, row_bytes,
                         dim / kChunk, sums);
    const Floats<4> steps = load_lanes<Floats<4>>(queries.steps + q);
    for (size_t r = 0; r < 4; ++r) {
      const Floats<4> sum = __builtin_convertvector(load_lanes<Ints<4>>(sums + r * 4), Floats<4>);
      const float scale = read_half(rows + r * row_bytes + dim);
      store_lanes(sum * scale * steps, scores + r * N + q);
    }
  }
}

// What the rows of a page weigh for four queries: codes times a step.
template <class Isa>
class CodeWeights {
 public:
  // `room`: so many floats.
  CodeWeights(float* room, size_t blocks)
      : weights_(room), packed_(reinterpret_cast<std::byte*>(room + 16 * blocks)), blocks_(blocks) {}

  // `shares` are [rows, stride], of which four queries are taken. `ahead` bytes on is what will be read
  // next, fetched row by row: all at once would be more than can be under way. 0: nothing is fetched.
  void weigh(const float* shares, size_t stride, const std::byte* rows, size_t row_bytes, size_t dim,
             ptrdiff_t ahead) {
    Floats<4> most = {};
    Ints<4> finite = most == most;
    for (size_t r = 0; r < 4 * blocks_; ++r) {
      if (ahead != 0) {
        for (size_t i = 0; i < row_bytes; i += 64)
          fetch_line<typename Isa::Fetch>(rows + r * row_bytes + ahead + i);
      }
      const Floats<4> share = load_lanes<Floats<4>>(shares + r * stride);
      const Ints<4> seen = share > 0.0f;  // behind the others there may be anything, even no number
      const Floats<4> weight = seen ? share * read_half(rows + r * row_bytes + dim) : Floats<4>{};
      const Ints<4> bits = load_lanes<Ints<4>>(&weight) & 0x7fffffff;
      const Floats<4> size = load_lanes<Floats<4>>(&bits);
      finite &= size < kInfinity;
      most = Isa::larger(size, most);
      store_lanes(weight, weights_ + 4 * r);
    }
    const Ints<4> some = most > kLeastScaled;
    const Floats<4> steps = some ? kSteps / most : Floats<4>{};
    const Floats<4> step = some ? most / kSteps : Floats<4>{};
    store_lanes(finite ? step : all<4>(__builtin_nanf("")), step_);
    for (size_t b = 0; b < blocks_; ++b) {
      Ints<4> four[4];
      for (size_t r = 0; r < 4; ++r) {
        const Floats<4> shifted = load_lanes<Floats<4>>(weights_ + 16 * b + 4 * r) * steps + 0x1.8p23f;
        four[r] = load_lanes<Ints<4>>(&shifted) << 16 >> 16;
      }
      Isa::Codes::pack_weights(four, b, packed_);
    }
  }

  // Adds sixteen values of the rows to those of the first `live` queries.
  void add(const std::byte* rows, size_t row_bytes, size_t chunk, size_t live, float* values,
           size_t width) const {
    int32_t sums[4 * kChunk];
    Isa::Codes::sum_rows(packed_, rows, row_bytes, blocks_, chunk, sums);
    add_sums<kChunk>(sums, live, values + chunk * kChunk, width);
  }

  // The same for whole sums, [queries, kCount].
  template <size_t kCount>
  ALWAYS_INLINE void add_sums(const int32_t* sums, size_t live, float* values, size_t width) const {
    using Lanes = Floats<Isa::kLanes>;
    for (size_t q = 0; q < live; ++q, sums += kCount) {
      float* out = values + q * width;
      for (size_t i = 0; i < kCount; i += Isa::kLanes) {
        const Lanes value = load_lanes<Lanes>(out + i);
        const Lanes sum = __builtin_convertvector(load_lanes<Ints<Isa::kLanes>>(sums + i), Lanes);
        store_lanes(Isa::multiply_add(sum, all<Isa::kLanes>(step_[q]), value), out + i);
      }
    }
  }

  const std::byte* packed() const { return packed_; }
  static constexpr size_t room(size_t blocks) { return 24 * blocks; }  // floats

 private:
  float* weights_;     // [rows, 4]
  std::byte* packed_;  // [blocks, 32]
  size_t blocks_;      // of four rows
  float step_[4];
};

// Adds the values of 4 * blocks rows under the shares of four queries; `ahead` as above.
template <class Isa>
void add_code_values(const float* shares, size_t stride, const std::byte* rows, size_t row_bytes,
                     size_t blocks, size_t dim, size_t live, ptrdiff_t ahead, float* room, float* values,
                     size_t width) {
  CodeWeights<Isa> weights(room, blocks);
  weights.weigh(shares, stride, rows, row_bytes, dim, ahead);
  for (size_t c = 0; c < dim / kChunk; ++c) weights.add(rows, row_bytes, c, live, values, width);
}

// Whether it is done for twice four queries at once.
template <class Isa>
constexpr bool takes_tiles(size_t dim) {
  if constexpr (Isa::Codes::kTileQueries > 0) return dim % Isa::Codes::kTileCodes == 0;
  return false;
}

// `live`: more than four.
template <class Isa>
void add_code_tile(const float* shares, size_t stride, const std::byte* rows, size_t row_bytes, size_t blocks,
                   size_t dim, size_t live, ptrdiff_t ahead, float* room, float* values, size_t width) {
  if constexpr (Isa::Codes::kTileQueries > 0) {
    constexpr size_t kCodes = Isa::Codes::kTileCodes;
    CodeWeights<Isa> first(room, blocks), second(room + CodeWeights<Isa>::room(blocks), blocks);
    first.weigh(shares, stride, rows, row_bytes, dim, ahead);
    second.weigh(shares + 4, stride, rows, row_bytes, dim, 0);
    const std::byte* const both[2] = {first.packed(), second.packed()};
    for (size_t d = 0; d < dim; d += kCodes) {
      int32_t sums[Isa::Codes::kTileQueries * kCodes];
      Isa::Codes::sum_tile(both, rows + d, row_bytes, blocks, sums);
      first.template add_sums<kCodes>(sums, 4, values + d, width);
      second.template add_sums<kCodes>(sums + 4 * kCodes, live - 4, values + 4 * width + d, width);
    }
  }
}

}  // namespace
}  // namespace quire
