#include "backend/cpu/attention/attend.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "backend/cpu/attention/attend_nibbles.h"
#include "backend/cpu/attention/kv_rows.h"
#include "tensor/float16.h"

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

int code_at(KvFormat format, const std::byte* row, size_t d) {
  if (format == KvFormat::int8) return int(int8_t(row[d]));
  const auto both = unsigned(row[d / kKvGroup * kKvGroup / 2 + d % (kKvGroup / 2)]);
  return int(d % kKvGroup < kKvGroup / 2 ? both & 15 : both >> 4);
}

// Codes that share a scale, and the scale: a code c is scale * c + least.
size_t code_group(KvFormat format, size_t dim) {
  return format == KvFormat::int8 ? dim : kKvGroup;
}
struct CodeScale {
  float scale, least;
};
CodeScale code_scale(KvFormat format, const std::byte* row, size_t dim, size_t group) {
  if (format == KvFormat::int8) return {read_half(row + dim), 0.0f};
  const std::byte* at = row + dim / 2 + group * 4;
  return {read_half(at), read_half(at + 2)};
}

// What queries and weights are rounded to.
float most_code(KvFormat format) {
  return format == KvFormat::int8 ? kSteps : kNibbleSteps;
}

// A row that is a key, or the part of one.
struct KeyRow {
  KvFormat format;
  size_t dim;
  const std::byte* bytes;
};

float integer_score(const AttendArgs& args, const float* query, const KeyRow& key) {
  const auto [format, dim, row] = key;
  const size_t group = code_group(format, dim);
  std::vector<int16_t> codes(dim);
  const float step = query_codes(query, dim, args.scale, most_code(format), codes.data());
  float parts[2] = {};
  for (size_t g = 0; g < dim / group; ++g) {
    int32_t products = 0, sum = 0;
    for (size_t d = g * group; d < (g + 1) * group; ++d) {
      products += codes[d] * code_at(format, row, d);
      sum += codes[d];
    }
    const CodeScale scale = code_scale(format, row, dim, g);
    float& part = parts[g % 2];
    part = std::fma(float(products), scale.scale, part);
    part = std::fma(float(sum), scale.least, part);
  }
  return (parts[0] + parts[1]) * step;
}

// A row of floats, and what is still to be multiplied with it.
struct FloatRow {
  std::vector<float> values;
  float scale = 1.0f;
};
FloatRow read_row(KvFormat format, const std::byte* row, size_t dim) {
  FloatRow out{std::vector<float>(dim)};
  load_kv_row(format, row, out.values);
  if (format != KvFormat::fp8) return out;
  out.scale = read_half(row + dim);
  for (size_t d = 0; d < dim; ++d) out.values[d] = e4m3(uint8_t(row[d]));
  return out;
}

// To what values in such a format are multiplied with.
float rounded_for(KvFormat format, float x) {
  return format == KvFormat::bf16 ? bf16_to_f32(f32_to_bf16(x)) : x;
}

float float_score(const AttendArgs& args, const float* query, const KeyRow& row) {
  const FloatRow key = read_row(row.format, row.bytes, row.dim);
  float sums[4] = {};
  for (size_t d = 0; d < row.dim; ++d)
    sums[d % 4] = std::fma(rounded_for(row.format, query[d] * args.scale), key.values[d], sums[d % 4]);
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) * key.scale;
}

float part_score(const AttendArgs& args, const float* query, const KeyRow& row) {
  return sums_codes(row.format, row.dim) ? integer_score(args, query, row) : float_score(args, query, row);
}

float score_of(const AttendArgs& args, const float* query, const std::byte* key, const std::byte* value) {
  const KvLayerShape& shape = *args.shape;
  float score = 0;  // of keys that are their values alone
  if (shape.key_dim > 0) score = part_score(args, query, {shape.key_format, shape.key_dim, key});
  if (shape.key_goes_on)
    score += part_score(args, query + shape.key_dim, {shape.value_format, shape.value_dim, value});
  if (args.soft_cap > 0) {
    const float e = exp_share(std::abs(score) * (-2.0f / args.soft_cap));
    score = std::copysign((1.0f - e) / (1.0f + e) * args.soft_cap, score);
  }
  return score;
}

// What rows of a page weigh in a group of codes.
struct Weights {
  std::vector<int16_t> codes;
  float step, base;
};
Weights weights_of(const KvLayerShape& shape, std::span<const float> shares, const std::byte* rows,
                   size_t group) {
  const KvFormat format = shape.value_format;
  const size_t dim = shape.value_dim, row_bytes = kv_row_bytes(format, dim);
  float most = 0, sum = 0, base = 0;
  bool finite = true;
  std::vector<float> weights;
  for (size_t r = 0; r < shares.size(); ++r) {
    const CodeScale scale = code_scale(format, rows + r * row_bytes, dim, group);
    // A share of 0 hides what a row of int8 holds, even no number.
    const float weight = format == KvFormat::int8 && !(shares[r] > 0) ? 0.0f : shares[r] * scale.scale;
    finite &= std::abs(weight) < kInfinity;
    most = std::max(most, std::abs(weight));
    sum += weight;
    base = std::fma(shares[r], scale.least, base);
    weights.push_back(weight);
  }
  const bool some = most > kLeastScaled;
  const float steps = some ? most_code(format) / most : 0.0f;
  Weights out{{}, some ? most / most_code(format) : 0.0f, 0.0f};
  if (!finite) out.step = std::numeric_limits<float>::quiet_NaN();
  int32_t total = 0;
  for (const float weight : weights) {
    out.codes.push_back(nearest16(weight * steps));
    total += out.codes.back();
  }
  if (format != KvFormat::int8)
    out.base = std::fma(kMiddleCode, std::fma(-float(total), out.step, sum), base);
  return out;
}

// Rows of one page, the first of them at `rows`, under their shares.
void add_integer_values(const KvLayerShape& shape, std::span<const float> shares, const std::byte* rows,
                        float* values) {
  const KvFormat format = shape.value_format;
  const size_t dim = shape.value_dim, group = code_group(format, dim), row_bytes = kv_row_bytes(format, dim);
  for (size_t g = 0; g < dim / group; ++g) {
    const Weights weights = weights_of(shape, shares, rows, g);
    for (size_t d = g * group; d < (g + 1) * group; ++d) {
      int32_t sum = 0;
      for (size_t r = 0; r < shares.size(); ++r)
        sum += weights.codes[r] * code_at(format, rows + r * row_bytes, d);
      values[d] = std::fma(float(sum), weights.step, values[d] + weights.base);
    }
  }
}

void add_float_values(const KvLayerShape& shape, std::span<const float> shares, const std::byte* rows,
                      float* values) {
  const size_t row_bytes = kv_row_bytes(shape.value_format, shape.value_dim);
  for (size_t r = 0; r < shares.size(); ++r) {
    const FloatRow row = read_row(shape.value_format, rows + r * row_bytes, shape.value_dim);
    const float share = shares[r] * row.scale;
    for (size_t d = 0; d < shape.value_dim; ++d) values[d] = std::fma(share, row.values[d], values[d]);
  }
}

void attend_one(const AttendArgs& args, const AttendQuery& query, float& max, float& sum, float* values) {
  const KvLayerShape& shape = *args.shape;
  const size_t key_bytes = kv_row_bytes(shape.key_format, shape.key_dim);
  const size_t value_bytes = kv_row_bytes(shape.value_format, shape.value_dim);
  max = -std::numeric_limits<float>::infinity();
  sum = 0;
  std::fill_n(values, args.value_width, 0.0f);
  for (uint32_t page = args.begin_page; page < args.end_page; ++page) {
    const uint32_t page_begin = page * args.page_tokens;
    const uint32_t begin = std::max(query.begin, page_begin);
    const uint32_t end = std::min(query.end, page_begin + args.page_tokens);
    if (begin >= end) continue;
    const std::byte* keys = args.pages[page - args.begin_page];
    const std::byte* value_rows = keys + args.page_tokens * key_bytes;
    std::vector<float> scores;
    for (uint32_t at = begin; at < end; ++at) {
      const float score = score_of(args, query.row, keys + (at - page_begin) * key_bytes,
                                   value_rows + (at - page_begin) * value_bytes);
      scores.push_back(args.slopes ? std::fma(-query.slope, float(query.end - 1 - at), score) : score);
    }
    const float largest = *std::max_element(scores.begin(), scores.end());
    if (largest > max) {
      const float factor = exp_share(max - largest);
      max = largest;
      sum *= factor;
      for (size_t d = 0; d < shape.value_dim; ++d) values[d] *= factor;
    }
    float page_sum = 0;
    for (float& score : scores) page_sum += score = rounded_for(shape.value_format, exp_share(score - max));
    sum += page_sum;
    const bool integers = sums_codes(shape.value_format, shape.value_dim);
    const auto add_values = integers ? add_integer_values : add_float_values;
    add_values(shape, scores, value_rows + (begin - page_begin) * value_bytes, values);
  }
}

void score_index(const AttendArgs& args) {
  const KvLayerShape& shape = *args.shape;
  const size_t row_bytes = kv_row_bytes(shape.key_format, shape.key_dim);
  float* out = args.index_scores;
  for (uint32_t page = args.begin_page; page < args.end_page; ++page) {
    for (uint32_t r = 0; r < args.page_tokens; ++r) {
      const KeyRow row{shape.key_format, shape.key_dim, args.pages[page - args.begin_page] + r * row_bytes};
      float sums[4] = {};
      for (size_t h = 0; h < args.count; ++h) {
        const float score = part_score(args, args.queries[h].row, row);
        sums[h % 4] = std::fma(args.index_weights[h], score < 0 ? 0.0f : score, sums[h % 4]);
      }
      *out++ = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    }
  }
}

}  // namespace

void attend_scalar(const AttendArgs& args) {
  if (args.index_weights != nullptr) return score_index(args);
  for (size_t q = 0; q < args.count; ++q)
    attend_one(args, args.queries[q], args.max[q], args.sum[q], args.values + q * args.value_width);
}

}  // namespace quire
