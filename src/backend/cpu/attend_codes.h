// Attention to rows of codes without making floats of them, for one instruction set. Included by files that are compiled
// for different ones, so nothing here may have a name that the linker sees, and nothing of the standard library that is code.
#pragma once

#include "backend/cpu/attend_lanes.h"
#include "backend/cpu/kv_codes.h"

namespace quire {
namespace {

constexpr size_t kChunk = 16;                    // codes that are taken at once
constexpr size_t kPackedBytes = 4 * 2 * kChunk;  // sixteen numbers of 16 bits for each of four queries
constexpr size_t kMostCodes = 1024;              // of a row: the sums of longer ones could overflow
constexpr size_t kMostGroups = kMostCodes / kKvGroup;
constexpr float kSteps = 127 * 128;        // numbers of 16 bits are split in two of 8, each in -127..127
constexpr float kLeastScaled = 0x1p-100f;  // what is smaller counts as 0
constexpr float kInfinity = __builtin_inff();

// Whether rows of such a format and size are summed as integers (attend.h). Others become floats.
constexpr bool sums_codes(KvFormat format, size_t dim) {
  if (dim > kMostCodes) return false;
  if (format == KvFormat::int8) return dim % kChunk == 0;
  return (format == KvFormat::q4 || format == KvFormat::q4_plain) && dim % kKvGroup == 0;
}

// Codes that share a scale.
constexpr size_t code_group(KvFormat format, size_t dim) {
  return format == KvFormat::int8 ? dim : kKvGroup;
}

struct CodeScale {
  float scale, least;  // of a code c: scale * c + least
};
ALWAYS_INLINE CodeScale code_scale(KvFormat format, const std::byte* row, size_t dim, size_t group) {
  if (format == KvFormat::int8) return {read_half(row + dim), 0.0f};
  const std::byte* at = row + dim / 2 + group * 4;
  return {read_half(at), read_half(at + 2)};
}

// The integer nearest to a number that 16 bits can hold; of any other some integer.
ALWAYS_INLINE int16_t nearest16(float x) {
  return int16_t(uint16_t(bits_as<uint32_t>(x + 0x1.8p23f)));
}

// A query, scaled, as `codes` times what is returned. A query that is not finite has the step NaN.
inline float query_codes(const float* row, size_t dim, float scale, int16_t* codes) {
  float most = 0.0f;
  bool finite = true;
  for (size_t d = 0; d < dim; ++d) {
    const float size = __builtin_fabsf(row[d] * scale);
    finite &= size < kInfinity;
    most = size > most ? size : most;
  }
  const bool some = finite && most > kLeastScaled;
  const float steps = some ? kSteps / most : 0.0f;
  for (size_t d = 0; d < dim; ++d) codes[d] = some ? nearest16(row[d] * scale * steps) : int16_t(0);
  return finite ? (some ? most / kSteps : 0.0f) : __builtin_nanf("");
}

// The queries of a tile as codes, in the room that their floats would have.
template <size_t N>
struct QueryCodes {
  std::byte* packed;  // [N / 4, chunks, kPackedBytes]
  float* steps;       // [N]
  float* sums;        // [groups, N]: of the codes

  QueryCodes(float* room, size_t dim)
      : packed(reinterpret_cast<std::byte*>(room)), steps(room + N * dim / 2), sums(steps + N) {}
};

// What an instruction set does with codes; here in plain loops. Sums of integers are exact: every set gives the same.
struct PlainCodes {
  // Sixteen codes of one of four queries.
  static void pack_query(const int16_t* codes, size_t lane, std::byte* out) {
    std::memcpy(out + lane * 2 * kChunk, codes, 2 * kChunk);
  }

  // sums[row, group, query] of four rows with four queries. `packed` are [chunks, kPackedBytes].
  template <KvFormat format>
  static void dot_rows(const std::byte* packed, const std::byte* rows, size_t row_bytes, size_t groups,
                       size_t group_chunks, int32_t* sums) {
    for (size_t r = 0; r < 4; ++r) {
      const std::byte* query = packed;
      for (size_t g = 0; g < groups; ++g, sums += 4) {
        std::memset(sums, 0, 4 * sizeof(int32_t));
        for (size_t c = g * group_chunks; c < (g + 1) * group_chunks; ++c, query += kPackedBytes) {
          int8_t codes[kChunk];
          unpack<format>(rows + r * row_bytes, c, codes);
          for (size_t lane = 0; lane < 4; ++lane) {
            int16_t other[kChunk];
            std::memcpy(other, query + lane * 2 * kChunk, sizeof(other));
            for (size_t i = 0; i < kChunk; ++i) sums[lane] += codes[i] * other[i];
          }
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
  template <KvFormat format>
  static void sum_rows(const std::byte* weights, const std::byte* rows, size_t row_bytes, size_t blocks,
                       size_t chunk, int32_t* sums) {
    std::memset(sums, 0, 4 * kChunk * sizeof(int32_t));
    for (size_t b = 0; b < blocks; ++b) {
      int16_t weight[4][4];
      std::memcpy(weight, weights + b * sizeof(weight), sizeof(weight));
      for (size_t r = 0; r < 4; ++r) {
        int8_t codes[kChunk];
        unpack<format>(rows + (4 * b + r) * row_bytes, chunk, codes);
        for (size_t lane = 0; lane < 4; ++lane) {
          for (size_t i = 0; i < kChunk; ++i) sums[lane * kChunk + i] += codes[i] * weight[lane][r];
        }
      }
    }
  }

  template <KvFormat format>
  static void unpack(const std::byte* row, size_t chunk, int8_t (&codes)[kChunk]) {
    const std::byte* at = row + (format == KvFormat::int8 ? chunk : chunk / 2) * kChunk;
    std::memcpy(codes, at, kChunk);
    if constexpr (format == KvFormat::int8) return;
    for (int8_t& code : codes) code = int8_t(chunk % 2 == 0 ? uint8_t(code) & 15 : uint8_t(code) >> 4);
  }
};

// Codes of the queries of a tile, [N], of which `row_of(lane)` says the floats.
template <class Codes, size_t N, class RowOf>
void gather_codes(const QueryCodes<N>& out, KvFormat format, size_t dim, float scale, RowOf row_of) {
  const size_t chunks = dim / kChunk, group = code_group(format, dim);
  for (size_t lane = 0; lane < N; ++lane) {
    int16_t codes[kMostCodes];
    out.steps[lane] = query_codes(row_of(lane), dim, scale, codes);
    std::byte* packed = out.packed + lane / 4 * chunks * kPackedBytes;
    for (size_t c = 0; c < chunks; ++c)
      Codes::pack_query(codes + c * kChunk, lane % 4, packed + c * kPackedBytes);
    for (size_t g = 0; g < dim / group; ++g) {
      int32_t sum = 0;
      for (size_t d = g * group; d < (g + 1) * group; ++d) sum += codes[d];
      out.sums[g * N + lane] = float(sum);
    }
  }
}

// Scores of four rows with N queries, [4, N].
template <class Isa, KvFormat format, size_t N>
void score_codes(const QueryCodes<N>& queries, const std::byte* rows, size_t row_bytes, size_t dim,
                 float* scores) {
  const size_t group = code_group(format, dim), groups = dim / group;
  int32_t sums[4 * kMostGroups * 4];
  for (size_t q = 0; q < N; q += 4) {
    Isa::Codes::template dot_rows<format>(queries.packed + q / 4 * (dim / kChunk) * kPackedBytes, rows,
                                          row_bytes, groups, group / kChunk, sums);
    const Floats<4> steps = load_lanes<Floats<4>>(queries.steps + q);
    for (size_t r = 0; r < 4; ++r) {
      Floats<4> score = {};
      for (size_t g = 0; g < groups; ++g) {
        const Floats<4> sum =
            __builtin_convertvector(load_lanes<Ints<4>>(sums + (r * groups + g) * 4), Floats<4>);
        const CodeScale scale = code_scale(format, rows + r * row_bytes, dim, g);
        if constexpr (format == KvFormat::int8) {
          score = sum * scale.scale;
        } else {
          score = Isa::multiply_add(sum, all<4>(scale.scale), score);
          score =
              Isa::multiply_add(load_lanes<Floats<4>>(queries.sums + g * N + q), all<4>(scale.least), score);
        }
      }
      store_lanes(score * steps, scores + r * N + q);
    }
  }
}

// What the rows of a page weigh for four queries: codes times a step.
template <class Isa>
class CodeWeights {
 public:
  // `room`: sixteen floats for each row.
  CodeWeights(float* room, size_t blocks)
      : weights_(room), packed_(reinterpret_cast<std::byte*>(room + 16 * blocks)), blocks_(blocks) {}

  // Of one group of codes. `shares` are [rows, stride], of which four queries are taken. `ahead` bytes on is what will be read
  // next, fetched row by row: all at once would be more than can be under way. 0: nothing is fetched.
  template <KvFormat format>
  void weigh(const float* shares, size_t stride, const std::byte* rows, size_t row_bytes, size_t dim,
             size_t group, ptrdiff_t ahead) {
    Floats<4> most = {}, base = {};
    Ints<4> finite = most == most;
    for (size_t r = 0; r < 4 * blocks_; ++r) {
      if (ahead != 0) {
        for (size_t i = 0; i < row_bytes; i += 64) __builtin_prefetch(rows + r * row_bytes + ahead + i);
      }
      const Floats<4> share = load_lanes<Floats<4>>(shares + r * stride);
      const Ints<4> seen = share > 0.0f;  // behind the others there may be anything, even no number
      const CodeScale scale = code_scale(format, rows + r * row_bytes, dim, group);
      const Floats<4> weight = seen ? share * scale.scale : Floats<4>{};
      const Ints<4> bits = load_lanes<Ints<4>>(&weight) & 0x7fffffff;
      const Floats<4> size = load_lanes<Floats<4>>(&bits);
      finite &= size < kInfinity;
      most = Isa::larger(size, most);
      if constexpr (format != KvFormat::int8)
        base = Isa::multiply_add(share, seen ? all<4>(scale.least) : Floats<4>{}, base);
      store_lanes(weight, weights_ + 4 * r);
    }
    const Ints<4> some = most > kLeastScaled;
    const Floats<4> steps = some ? kSteps / most : Floats<4>{};
    const Floats<4> step = some ? most / kSteps : Floats<4>{};
    store_lanes(finite ? step : all<4>(__builtin_nanf("")), step_);
    store_lanes(base, base_);
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
  template <KvFormat format>
  void add(const std::byte* rows, size_t row_bytes, size_t chunk, size_t live, float* values,
           size_t width) const {
    using Lanes = Floats<Isa::kLanes>;
    int32_t sums[4 * kChunk];
    Isa::Codes::template sum_rows<format>(packed_, rows, row_bytes, blocks_, chunk, sums);
    for (size_t q = 0; q < live; ++q) {
      float* out = values + q * width + chunk * kChunk;
      for (size_t i = 0; i < kChunk; i += Isa::kLanes) {
        Lanes value = load_lanes<Lanes>(out + i);
        if constexpr (format != KvFormat::int8) value += base_[q];
        const Lanes sum =
            __builtin_convertvector(load_lanes<Ints<Isa::kLanes>>(sums + q * kChunk + i), Lanes);
        store_lanes(Isa::multiply_add(sum, all<Isa::kLanes>(step_[q]), value), out + i);
      }
    }
  }

 private:
  float* weights_;     // [rows, 4]
  std::byte* packed_;  // [blocks, 32]
  size_t blocks_;      // of four rows
  float step_[4], base_[4];
};

// Adds the values of 4 * blocks rows under the shares of four queries; `ahead` as above.
template <class Isa, KvFormat format>
void add_code_values(const float* shares, size_t stride, const std::byte* rows, size_t row_bytes,
                     size_t blocks, size_t dim, size_t live, ptrdiff_t ahead, float* room, float* values,
                     size_t width) {
  CodeWeights<Isa> weights(room, blocks);
  const size_t group = code_group(format, dim), chunks = group / kChunk;
  for (size_t g = 0; g < dim / group; ++g) {
    weights.template weigh<format>(shares, stride, rows, row_bytes, dim, g, g == 0 ? ahead : 0);
    for (size_t c = g * chunks; c < (g + 1) * chunks; ++c)
      weights.template add<format>(rows, row_bytes, c, live, values, width);
  }
}

}  // namespace
}  // namespace quire
