#pragma once

#include <cstdint>

#include "backend/cuda/device_math.h"

// What attention computes for one query head of one token, and in which order. Every kernel follows it, whatever it
// computes beside the row: so neither the chunk that a token came in, nor its company, nor the kernel can be seen in the
// result. Only the rows of the keys that the token sees count, and where they stand in its sequence:
//
//   splits of kSplitKeys keys, in them blocks of kBlockKeys, both at multiples of their size. In a split, block by block:
//     score     = products of query and key, 16 dimensions a step, chained from zero; times the factor of the key's row, if its
//                 format has one (kv_row_numbers.h); where the key goes on in its value, the same of the value's row is added;
//                 then the soft cap
//     x         = the largest score of the block * scale; only if it is more than kRise above the reference, the reference
//                 becomes x, and sum and values are multiplied with 2^(old - new)
//     p         = 2^(score * scale - reference), the product not rounded; 0 for keys that the token does not see
//     sum      += p, not rounded further. Four sums: of keys 8j + 2t and 8j + 2t + 1, in order, for t = 0 to 3; at the end
//                 of the split (s0 + s1) + (s2 + s3)
//     values   += p * value rows, 16 keys a step, chained; p, times the factor of the row, is rounded to the rows' numbers
//   splits are merged in order, then the sink as if it were one with sum 1 and values 0:
//     M' = max(M, m), values = values * 2^(M - M') + split's * 2^(m - M'), the last multiply-add fused; sums alike
//   result    = values * (1 / sum), turned back where the value rows are turned
//
// Scores are in units of log2. Blocks that the token does not see at all change nothing, and may be left out. Rows that are
// read but not seen are multiplied with 0: they must be finite.

namespace quire::cuda {

inline constexpr uint32_t kSplitKeys = 512, kBlockKeys = 128;
inline constexpr float kRise = 8.0f;
inline constexpr float kLog2E = 1.4426950408889634f;

// What is done to a sum of products before the softmax.
struct ScoreScale {
  float into_cap;  // 0: no cap
  float scale;     // to units of log2
};

QUIRE_BOTH ScoreScale score_scale(float scale, float soft_cap) {
  if (soft_cap <= 0) return {0.0f, scale * kLog2E};
  return {scale / soft_cap, soft_cap * kLog2E};
}

// tanh(score * into_cap); the scale puts the cap's size back.
QUIRE_BOTH float capped(float score, float into_cap) {
  const float x = score * into_cap;
  const float e = exp2_of((x < 0 ? x : -x) * (2.0f * kLog2E));
  const float size = (1.0f - e) * reciprocal(1.0f + e);
  return x < 0 ? -size : size;
}

// The first key that a token at `row` sees.
QUIRE_BOTH uint32_t first_visible(uint32_t row, uint32_t window) {
  return window == 0 || row < window ? 0 : row + 1 - window;
}

// Takes a block's largest score into the reference, and returns what sum and values are multiplied with.
QUIRE_BOTH float raise_reference(float largest, float scale, float& reference) {
  const float x = largest * scale;
  const bool rises = x > reference + kRise;
  const float factor = rises ? exp2_of(reference - x) : 1.0f;
  reference = rises ? x : reference;
  return factor;
}

// What is added to score * scale: the reference is -inf as long as no key was seen.
QUIRE_BOTH float offset_of(float reference) {
  return reference == -infinity() ? 0.0f : -reference;
}

// The weights under which a total and the next split are added. The total's reference becomes the larger one.
struct MergeWeights {
  float total, split;
};
QUIRE_BOTH MergeWeights merge_weights(float split_reference, float& total_reference) {
  if (split_reference == -infinity()) return {1.0f, 0.0f};
  const float next = larger(total_reference, split_reference);
  const MergeWeights weights = {exp2_of(total_reference - next), exp2_of(split_reference - next)};
  total_reference = next;
  return weights;
}

QUIRE_BOTH float merged(float total, float split, const MergeWeights& weights) {
  return fused(split, weights.split, total * weights.total);
}

// The keys of one split that some token of [row, row + tokens) sees, from a block's begin on.
struct KeySpan {
  uint32_t begin, end;
};
QUIRE_BOTH KeySpan keys_of_split(uint32_t split, uint32_t row, uint32_t tokens, uint32_t window) {
  const uint32_t from = split * kSplitKeys, to = from + kSplitKeys;
  const uint32_t first = first_visible(row, window) / kBlockKeys * kBlockKeys, last = row + tokens;
  return {first > from ? first : from, last < to ? last : to};
}

}  // namespace quire::cuda
