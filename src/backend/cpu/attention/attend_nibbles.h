// Attention to rows of q4 without making floats of them, for one instruction set. Included by files that are compiled for
// different ones, so nothing here may have a name that the linker sees, and nothing of the standard library that is code.
#pragma once

#include "backend/cpu/attention/attend_codes.h"

namespace quire {
namespace {

// Groups are taken two by two: a pair of them has 64 codes in 32 bytes, and its four scales stand together too.
constexpr size_t kPairCodes = 2 * kKvGroup;
constexpr float kNibbleSteps = 127;  // the most of a query or of a weight
constexpr float kMiddleCode = 7.5f;  // of 0..15
constexpr size_t kRunBlocks = 8;  // blocks of four rows whose products, two by two, can be summed in 16 bits
constexpr size_t kExpandedBytes = 128;  // room for the weights of a block and a pair of groups

constexpr size_t code_pairs(size_t dim) {
  return (dim + kPairCodes - 1) / kPairCodes;
}

// Four queries as bytes, in the room that their floats would have.
struct NibbleQueries {
  std::byte* packed;  // [pairs, 4 * kPairCodes], as an instruction set wants them
  float* steps;       // [4]
  float* sums;        // [2 * pairs, 4]: of the bytes of a group

  NibbleQueries(float* room, size_t dim)
      : packed(reinterpret_cast<std::byte*>(room)),
        steps(room + code_pairs(dim) * kPairCodes),
        sums(steps + 4) {}
};

// Some rows of a page. In a row the codes of all groups come first, then a scale and a least for each.
struct NibbleRows {
  const std::byte* bytes;
  size_t row_bytes, dim;

  ALWAYS_INLINE const std::byte* codes(size_t row, size_t pair) const {
    return bytes + row * row_bytes + pair * kPairCodes / 2;
  }
  ALWAYS_INLINE const std::byte* scales(size_t row, size_t pair) const {
    return bytes + row * row_bytes + dim / 2 + pair * 8;
  }
  // The last pair may be one group.
  ALWAYS_INLINE bool is_whole(size_t pair) const { return (pair + 1) * kPairCodes <= dim; }
  size_t pairs() const { return code_pairs(dim); }
};

// The shares of 4 * blocks rows for four queries, [rows, stride]. A lane sees the rows [begin, end), which is looked at only
// where not all of them are seen: what others hold may be anything, even no number.
struct NibbleShares {
  const float* shares;
  size_t stride, blocks;
  const int32_t *begin, *end;  // [4]; or null: all are seen
  ptrdiff_t ahead;             // bytes on is what will be read next, fetched row by row; 0: nothing is
};

// What the rows weigh: the sum of byte times code, times a step, plus a base.
struct NibbleWeights {
  float* floats;      // [rows, 2, 4]
  std::byte* packed;  // [blocks, kExpandedBytes], as an instruction set wants them
  float step[2][4], base[2][4];

  // `room`: sixteen floats for each row.
  NibbleWeights(float* room, size_t blocks)
      : floats(room), packed(reinterpret_cast<std::byte*>(room + 32 * blocks)) {}
};

// What an instruction set does with q4; here in plain loops.
struct PlainNibbles {
  // Bytes of four queries, [4, kPairCodes], of one pair of groups.
  static void pack_queries(const int8_t* codes, std::byte* out) { std::memcpy(out, codes, 4 * kPairCodes); }

  // Scores of four rows with four queries, [4, stride].
  template <class Isa>
  static void score(const NibbleQueries& queries, const NibbleRows& rows, float* scores, size_t stride) {
    for (size_t r = 0; r < 4; ++r) {
      Floats<4> parts[2] = {};
      for (size_t group = 0; group < rows.dim / kKvGroup; ++group) {
        Floats<4> sum = {};
        for (size_t lane = 0; lane < 4; ++lane) {
          const auto* query = reinterpret_cast<const int8_t*>(queries.packed) + group / 2 * 4 * kPairCodes +
                              lane * kPairCodes + group % 2 * kKvGroup;
          int32_t total = 0;
          for (size_t i = 0; i < kKvGroup; ++i) total += query[i] * code(rows, r, group, i);
          sum[lane] = float(total);
        }
        const std::byte* at = rows.scales(r, 0) + group * 4;
        Floats<4>& part = parts[group % 2];
        part = Isa::multiply_add(sum, all<4>(read_half(at)), part);
        part = Isa::multiply_add(load_lanes<Floats<4>>(queries.sums + group * 4), all<4>(read_half(at + 2)),
                                 part);
      }
      store_lanes((parts[0] + parts[1]) * load_lanes<Floats<4>>(queries.steps), scores + r * stride);
    }
  }

  // What the rows weigh in a pair of groups.
  template <class Isa>
  static void weigh(const NibbleShares& from, const NibbleRows& rows, size_t pair, NibbleWeights& out) {
    const size_t count = 4 * from.blocks;
    for (size_t g = 0; g < (rows.is_whole(pair) ? 2 : 1); ++g) {
      Floats<4> most = {}, sum = {}, base = {}, total = {};
      for (size_t r = 0; r < count; ++r) {
        const std::byte* at = rows.scales(r, pair) + g * 4;
        Ints<4> seen = Ints<4>{} - 1;
        if (from.begin != nullptr)
          seen =
              (load_lanes<Ints<4>>(from.begin) <= int32_t(r)) & (load_lanes<Ints<4>>(from.end) > int32_t(r));
        const Floats<4> share = load_lanes<Floats<4>>(from.shares + r * from.stride);
        const Floats<4> weight = seen ? share * read_half(at) : Floats<4>{};
        most = weight > most ? weight : most;
        sum += weight;
        base = Isa::multiply_add(share, seen ? all<4>(read_half(at + 2)) : Floats<4>{}, base);
        store_lanes(weight, out.floats + 4 * r);
      }
      const Ints<4> some = most > kLeastScaled;
      const Floats<4> steps = some ? kNibbleSteps / most : Floats<4>{};
      Floats<4> step = some ? most / kNibbleSteps : Floats<4>{};
      step = most < kInfinity ? step : all<4>(__builtin_nanf(""));
      for (size_t r = 0; r < count; ++r) {
        const Floats<4> exact = load_lanes<Floats<4>>(out.floats + 4 * r) * steps;
        for (size_t lane = 0; lane < 4; ++lane) {
          const auto weight = int8_t(nearest16(exact[lane]));
          out.packed[r * 8 + g * 4 + lane] = std::byte(weight);
          total[lane] += float(weight);
        }
      }
      store_lanes(step, out.step[g]);
      store_lanes(Isa::multiply_add(all<4>(kMiddleCode), Isa::multiply_add(-total, step, sum), base),
                  out.base[g]);
    }
  }

  // Adds the values of a pair of groups to those of the first `live` queries, [live, width].
  template <class Isa>
  static void add(const NibbleWeights& weights, const NibbleRows& rows, size_t blocks, size_t pair,
                  size_t live, float* values, size_t width) {
    for (size_t g = 0; g < (rows.is_whole(pair) ? 2 : 1); ++g) {
      for (size_t lane = 0; lane < live; ++lane) {
        float* out = values + lane * width + pair * kPairCodes + g * kKvGroup;
        const Floats<4> step = all<4>(weights.step[g][lane]);
        for (size_t i = 0; i < kKvGroup; i += 4) {
          Floats<4> sum = {};
          for (size_t r = 0; r < 4 * blocks; ++r) {
            const auto weight = float(int8_t(weights.packed[r * 8 + g * 4 + lane]));
            for (size_t k = 0; k < 4; ++k) sum[k] += weight * float(code(rows, r, 2 * pair + g, i + k));
          }
          const Floats<4> value = load_lanes<Floats<4>>(out + i) + weights.base[g][lane];
          store_lanes(Isa::multiply_add(sum, step, value), out + i);
        }
      }
    }
  }

  static int32_t code(const NibbleRows& rows, size_t row, size_t group, size_t i) {
    const auto both = uint8_t(rows.codes(row, 0)[group * kKvGroup / 2 + i % (kKvGroup / 2)]);
    return i < kKvGroup / 2 ? both & 15 : both >> 4;
  }
};

// Bytes of four queries, of which `row_of(lane)` says the floats.
template <class Nibbles, class RowOf>
void gather_nibbles(const NibbleQueries& out, size_t dim, float scale, RowOf row_of) {
  int8_t bytes[4][kMostCodes] = {};
  const size_t pairs = code_pairs(dim);
  for (size_t lane = 0; lane < 4; ++lane) {
    int16_t codes[kMostCodes];
    out.steps[lane] = query_codes(row_of(lane), dim, scale, kNibbleSteps, codes);
    for (size_t d = 0; d < dim; ++d) bytes[lane][d] = int8_t(codes[d]);
    for (size_t g = 0; g < 2 * pairs; ++g) {
      int32_t sum = 0;
      for (size_t i = 0; i < kKvGroup; ++i) sum += bytes[lane][g * kKvGroup + i];
      out.sums[g * 4 + lane] = float(sum);
    }
  }
  for (size_t pair = 0; pair < pairs; ++pair) {
    int8_t four[4 * kPairCodes];
    for (size_t lane = 0; lane < 4; ++lane)
      std::memcpy(four + lane * kPairCodes, bytes[lane] + pair * kPairCodes, kPairCodes);
    Nibbles::pack_queries(four, out.packed + pair * sizeof(four));
  }
}

// Adds the values of the rows under their shares to those of the first `live` queries, [live, width].
template <class Isa>
void add_nibble_values(const NibbleShares& shares, const NibbleRows& rows, size_t live, float* room,
                       float* values, size_t width) {
  NibbleWeights weights(room, shares.blocks);
  for (size_t pair = 0; pair < rows.pairs(); ++pair) {
    Isa::Nibbles::template weigh<Isa>(shares, rows, pair, weights);
    Isa::Nibbles::template add<Isa>(weights, rows, shares.blocks, pair, live, values, width);
  }
}

}  // namespace
}  // namespace quire
