#pragma once

#include <cstdint>

#include "backend/cuda/attention/attention_rule.h"
#include "backend/cuda/attention/kv_row_numbers.h"
#include "backend/cuda/attention/paged_rows.h"
#include "backend/cuda/matmul/tensor_core_step.h"

// The rule of attention written plainly, for the CPU and as a slow kernel: what the others are compared with.

namespace quire::cuda {

inline constexpr uint32_t kMostHeadDim = 512;
// Of a key and the value that it goes on in.
inline constexpr uint32_t kMostLatentDim = 640;

// One query head of one token.
struct PlainAttention {
  const uint16_t* query;  // [query_dim]
  PagedRows rows;         // memory of the side that computes
  KvFormat key_format, value_format;
  const uint32_t* page_ids;  // the sequence's table
  uint32_t kv_head, row;     // row: where the token's own key is
  uint32_t window;
  ScoreScale scale;
  const float* sink;  // or null
  float* out;         // [value_dim]
};

struct PlainScratch {
  float scores[kBlockKeys];
  uint16_t shares[kBlockKeys];
  float sums[4];
  float values[kMostHeadDim], totals[kMostHeadDim];
};

// Some loops: one thread's, one after the other.
struct OneThread {
  template <class Body>
  QUIRE_BOTH void each(uint32_t count, const Body& body) const {
    for (uint32_t i = 0; i < count; ++i) body(i);
  }
};

// Of a kernel for each pair of kinds, that for these formats.
template <class Kernels>
auto for_kinds(KvFormat key_format, KvFormat value_format, const Kernels& kernels) {
  const bool f16_keys = numbers_of(key_format) == HalfKind::f16;
  if (numbers_of(value_format) == HalfKind::f16) {
    return f16_keys ? kernels.template of<HalfKind::f16, HalfKind::f16>()
                    : kernels.template of<HalfKind::bf16, HalfKind::f16>();
  }
  return f16_keys ? kernels.template of<HalfKind::f16, HalfKind::bf16>()
                  : kernels.template of<HalfKind::bf16, HalfKind::bf16>();
}

template <HalfKind kind>
QUIRE_BOTH uint16_t rounded_share(float p) {
  if constexpr (kind == HalfKind::bf16) {
    const uint32_t bits = bits_of(p);
    return uint16_t((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
  } else {
    if (p < 0x1p-14f)
      return uint16_t(bits_of(p + 0.5f) - 0x3f000000u);  // subnormal: its bits align at the bottom
    const uint32_t bits = bits_of(p);
    return uint16_t((bits - 0x38000000u + 0xfffu + (bits >> 13 & 1u)) >> 13);
  }
}

// REQUIRES: the kinds are those of the formats (numbers_of).
template <HalfKind key_kind, HalfKind value_kind>
struct PlainRule {
  const PlainAttention& a;

  QUIRE_BOTH uint32_t page_of(uint32_t key) const { return a.page_ids[key / a.rows.page_tokens]; }
  QUIRE_BOTH const std::byte* key_row(uint32_t key) const {
    return a.rows.key_row(page_of(key), a.kv_head, key % a.rows.page_tokens);
  }
  QUIRE_BOTH const std::byte* value_row(uint32_t key) const {
    return a.rows.value_row(page_of(key), a.kv_head, key % a.rows.page_tokens);
  }
  QUIRE_BOTH bool sees(uint32_t key) const { return key <= a.row && key >= first_visible(a.row, a.window); }

  // Products of a query, or its part, with a row.
  template <HalfKind kind>
  QUIRE_BOTH float products(KvFormat format, const std::byte* row, uint32_t dim,
                            const uint16_t* query) const {
    float sum = 0;
    for (uint32_t d = 0; d < dim; d += 16) {
      uint16_t x[16] = {}, y[16] = {};
      for (uint32_t i = 0; i < 16 && d + i < dim; ++i) {
        x[i] = query[d + i];
        y[i] = row_number(format, row, dim, d + i);
      }
      sum = tensor_core_step<kind>(x, y, sum);
    }
    return has_factors(format) ? sum * row_factor(format, row, dim) : sum;
  }

  QUIRE_BOTH float score(uint32_t key) const {
    if (!sees(key)) return -infinity();
    const uint32_t dim = a.rows.key_dim;
    float sum = products<key_kind>(a.key_format, key_row(key), dim, a.query);
    if (a.rows.key_goes_on)
      sum = sum + products<value_kind>(a.value_format, value_row(key), a.rows.value_dim, a.query + dim);
    return a.scale.into_cap > 0 ? capped(sum, a.scale.into_cap) : sum;
  }

  // The block's rows of dimension d under their shares, added to `value`. A row that is not seen counts as zeros.
  QUIRE_BOTH float add_values(float value, uint32_t block, const uint16_t* shares, uint32_t d) const {
    for (uint32_t k = 0; k < kBlockKeys; k += 16) {
      uint16_t x[16], y[16];
      for (uint32_t i = 0; i < 16; ++i) {
        x[i] = shares[k + i];
        y[i] = sees(block + k + i) ? row_number(a.value_format, value_row(block + k + i), a.rows.value_dim, d)
                                   : uint16_t(0);
      }
      value = tensor_core_step<value_kind>(x, y, value);
    }
    return value;
  }

  // `team.each` divides a loop among threads, and all have finished it when it returns.
  template <class Team>
  QUIRE_BOTH void attend(const Team& team, PlainScratch& s) const {
    const uint32_t dims = a.rows.value_dim;
    float total_reference = -infinity(), total_sum = 0;
    team.each(dims, [&](uint32_t d) { s.totals[d] = 0; });
    for (uint32_t split = first_visible(a.row, a.window) / kSplitKeys; split <= a.row / kSplitKeys; ++split) {
      float reference = -infinity();
      team.each(dims, [&](uint32_t d) { s.values[d] = 0; });
      team.each(4, [&](uint32_t t) { s.sums[t] = 0; });
      for (uint32_t block = split * kSplitKeys; block < (split + 1) * kSplitKeys; block += kBlockKeys)
        attend_block(team, s, block, reference);
      const float sum = (s.sums[0] + s.sums[1]) + (s.sums[2] + s.sums[3]);
      const MergeWeights weights = merge_weights(reference, total_reference);
      total_sum = merged(total_sum, sum, weights);
      team.each(dims, [&](uint32_t d) { s.totals[d] = merged(s.totals[d], s.values[d], weights); });
    }
    MergeWeights weights = {1.0f, 0.0f};
    if (a.sink != nullptr) {
      weights = merge_weights(*a.sink * kLog2E, total_reference);
      total_sum = merged(total_sum, 1.0f, weights);
    }
    team.each(dims, [&](uint32_t d) {
      const float value = a.sink != nullptr ? merged(s.totals[d], 0.0f, weights) : s.totals[d];
      s.totals[d] = value * reciprocal(total_sum);
    });
    if (is_turned(a.value_format)) turn_back(team, s.totals);
    team.each(dims, [&](uint32_t d) { a.out[d] = s.totals[d]; });
  }

  // As turn_kv_row of the CPU does. Not in `out`, where another may compute the same row.
  template <class Team>
  QUIRE_BOTH void turn_back(const Team& team, float* values) const {
    const uint32_t dims = a.rows.value_dim, block = dims & (~dims + 1);
    const float norm = 1.0f / square_root(float(block));
    for (uint32_t step = 1; step < block; step *= 2) {
      team.each(dims / 2, [&](uint32_t i) {
        float& low = values[i / step * 2 * step + i % step];
        float& high = values[i / step * 2 * step + i % step + step];
        const float x = low, y = high;
        low = x + y;
        high = x - y;
      });
    }
    team.each(dims, [&](uint32_t d) { values[d] *= norm; });
  }

  // Of a key that is not seen it is 0 whatever its row holds.
  QUIRE_BOTH uint16_t share_of(uint32_t key, float p) const {
    if (!sees(key)) return 0;
    if (has_factors(a.value_format)) p *= row_factor(a.value_format, value_row(key), a.rows.value_dim);
    return rounded_share<value_kind>(p);
  }

  template <class Team>
  QUIRE_BOTH void attend_block(const Team& team, PlainScratch& s, uint32_t block, float& reference) const {
    team.each(kBlockKeys, [&](uint32_t k) { s.scores[k] = score(block + k); });
    float largest = -infinity();
    for (uint32_t k = 0; k < kBlockKeys; ++k) largest = larger(largest, s.scores[k]);
    const float factor = raise_reference(largest, a.scale.scale, reference);
    const float offset = offset_of(reference);
    const auto share = [&](uint32_t k) { return exp2_of(fused(s.scores[k], a.scale.scale, offset)); };
    team.each(kBlockKeys, [&](uint32_t k) { s.shares[k] = share_of(block + k, share(k)); });
    team.each(4, [&](uint32_t t) {
      float sum = s.sums[t] * factor;
      for (uint32_t k = 2 * t; k < kBlockKeys; k += 8) sum = (sum + share(k)) + share(k + 1);
      s.sums[t] = sum;
    });
    team.each(a.rows.value_dim,
              [&](uint32_t d) { s.values[d] = add_values(s.values[d] * factor, block, s.shares, d); });
  }
};

struct PlainRules {
  template <HalfKind key_kind, HalfKind value_kind>
  auto of() const {
    return +[](const PlainAttention& attention, PlainScratch& scratch) {
      PlainRule<key_kind, value_kind>{attention}.attend(OneThread(), scratch);
    };
  }
};

// On this thread.
inline void attend_plainly(const PlainAttention& attention, PlainScratch& scratch) {
  for_kinds(attention.key_format, attention.value_format, PlainRules())(attention, scratch);
}

}  // namespace quire::cuda
