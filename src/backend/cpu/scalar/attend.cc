#include "backend/cpu/attend.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "backend/cpu/kv_rows.h"

namespace quire {
namespace {

float exp_share(float x) {
  using E = ShareExp;
  x = E::kLeast > x ? E::kLeast : x;
  const float shifted = std::fma(x, E::kLog2E, E::kRound);
  const float r = std::fma(shifted - E::kRound, -E::kLn2, x);
  const float square = r * r;
  float p = std::fma(square, E::kP6, std::fma(r, E::kP5, E::kP4));
  p = std::fma(square, p, std::fma(r, E::kP3, E::kP2));
  p = std::fma(square, p, r + 1.0f);
  return p * std::bit_cast<float>(std::bit_cast<uint32_t>(shifted) << 23);
}

float score_of(const AttendArgs& args, const float* query, const std::byte* bytes) {
  std::vector<float> key(args.shape->key_dim);
  load_kv_row(args.shape->key_format, bytes, key);
  float sums[4] = {};
  for (size_t d = 0; d < args.shape->key_dim; ++d)
    sums[d % 4] = std::fma(query[d] * args.scale, key[d], sums[d % 4]);
  const float score = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  if (args.soft_cap == 0) return score;
  const float e = exp_share(std::abs(score) * (-2.0f / args.soft_cap));
  return std::copysign((1.0f - e) / (1.0f + e) * args.soft_cap, score);
}

void attend_one(const AttendArgs& args, const AttendQuery& query, float& max, float& sum, float* values) {
  const KvLayerShape& shape = *args.shape;
  const size_t key_bytes = kv_row_bytes(shape.key_format, shape.key_dim);
  const size_t value_bytes = kv_row_bytes(shape.value_format, shape.value_dim);
  max = -std::numeric_limits<float>::infinity();
  sum = 0;
  std::fill_n(values, args.value_width, 0.0f);
  std::vector<float> value(shape.value_dim);
  for (uint32_t page = args.begin_page; page < args.end_page; ++page) {
    const uint32_t page_begin = page * args.page_tokens;
    const uint32_t begin = std::max(query.begin, page_begin);
    const uint32_t end = std::min(query.end, page_begin + args.page_tokens);
    if (begin >= end) continue;
    const std::byte* keys = args.pages[page - args.begin_page];
    const std::byte* value_rows = keys + args.page_tokens * key_bytes;
    std::vector<float> scores;
    for (uint32_t at = begin; at < end; ++at)
      scores.push_back(score_of(args, query.row, keys + (at - page_begin) * key_bytes));
    const float largest = *std::max_element(scores.begin(), scores.end());
    if (largest > max) {
      const float factor = exp_share(max - largest);
      max = largest;
      sum *= factor;
      for (size_t d = 0; d < shape.value_dim; ++d) values[d] *= factor;
    }
    float page_sum = 0;
    for (uint32_t at = begin; at < end; ++at) {
      const float share = exp_share(scores[at - begin] - max);
      load_kv_row(shape.value_format, value_rows + (at - page_begin) * value_bytes, value);
      page_sum += share;
      for (size_t d = 0; d < shape.value_dim; ++d) values[d] = std::fma(share, value[d], values[d]);
    }
    sum += page_sum;
  }
}

}  // namespace

void attend_scalar(const AttendArgs& args) {
  for (size_t q = 0; q < args.count; ++q)
    attend_one(args, args.queries[q], args.max[q], args.sum[q], args.values + q * args.value_width);
}

}  // namespace quire
