#include <algorithm>
#include <cmath>
#include <vector>

#include "backend/cpu/attention/kv_rows.h"
#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/vector_math.h"
#include "base/check.h"

// What queries to come are expected to look at. Every score depends on the samples and its row alone, whatever the threads.

namespace quire {
namespace {

// Mean and covariance of one head's samples. Rows are padded with zeros to a multiple of four.
struct Moments {
  std::vector<float> mean;        // [width]
  std::vector<float> covariance;  // [width, width]
};

Moments moments_of(const Rows& samples, size_t begin, size_t dim, size_t width) {
  Moments moments{std::vector<float>(width), std::vector<float>(width * width)};
  const double share = 1.0 / double(samples.rows);
  for (size_t i = 0; i < dim; ++i) {
    double sum = 0;
    for (size_t s = 0; s < samples.rows; ++s) sum += double(samples.row(s)[begin + i]);
    moments.mean[i] = float(sum * share);
  }
  std::vector<float> apart(width);  // one sample without the mean
  for (size_t s = 0; s < samples.rows; ++s) {
    for (size_t i = 0; i < dim; ++i) apart[i] = samples.row(s)[begin + i] - moments.mean[i];
    for (size_t i = 0; i < dim; ++i) {
      float* row = &moments.covariance[i * width];
      const F32x4 factor = all4(apart[i]);
      for (size_t j = 0; j < width; j += 4)
        store4(multiply_add(factor, load4(&apart[j]), load4(row + j)), row + j);
    }
  }
  for (float& value : moments.covariance) value *= float(share);
  return moments;
}

// The mean of a key's score and half its variance.
float score_of(const Moments& moments, const float* key, size_t width, float scale) {
  F32x4 mean = all4(0), spread = all4(0);
  for (size_t i = 0; i < width; i += 4) {
    const float* rows = &moments.covariance[i * width];
    F32x4 a = all4(0), b = all4(0), c = all4(0), d = all4(0);
    for (size_t j = 0; j < width; j += 4) {
      const F32x4 part = load4(key + j);
      a = multiply_add(load4(rows + j), part, a);
      b = multiply_add(load4(rows + width + j), part, b);
      c = multiply_add(load4(rows + 2 * width + j), part, c);
      d = multiply_add(load4(rows + 3 * width + j), part, d);
    }
    spread = multiply_add(sum_each(a, b, c, d), load4(key + i), spread);
    mean = multiply_add(load4(&moments.mean[i]), load4(key + i), mean);
  }
  const auto sum = [](F32x4 v) { return (v[0] + v[1]) + (v[2] + v[3]); };
  return scale * sum(mean) + 0.5f * scale * scale * sum(spread);
}

float norm_of(std::span<const float> values) {
  double sum = 0;
  for (const float value : values) sum += double(value) * double(value);
  return float(std::sqrt(sum));
}

}  // namespace

void CpuBackend::expected_scores(const ExpectedScoresParams& params) {
  const KvLayerShape& shape = params.kv.layer->shape;
  CHECK(shape.window == 0 && params.samples.rows > 0);
  const uint32_t run = params.run, rows = params.rows;
  CHECK(params.scores.width >= rows && params.value_norms.width >= rows);
  const uint32_t group = params.heads / shape.kv_heads, page_tokens = params.kv.group->layout->page_tokens;
  const uint32_t dim = shape.query_dim();
  const size_t width = (dim + 3) / 4 * 4;

  std::vector<Moments> moments(params.heads);
  pool_.parallel_for(params.heads, 1, [&](size_t begin, size_t end) {
    for (size_t h = begin; h < end; ++h) moments[h] = moments_of(params.samples, size_t(h) * dim, dim, width);
  });
  const uint32_t pages = (rows + page_tokens - 1) / page_tokens;
  pool_.parallel_for(size_t(pages) * shape.kv_heads, 1, [&](size_t begin, size_t end) {
    std::vector<float> key(width), value(shape.value_dim);
    for (size_t i = begin; i < end; ++i) {
      const uint32_t kv_head = uint32_t(i / pages), first = uint32_t(i % pages) * page_tokens;
      for (uint32_t row = first; row < std::min(rows, first + page_tokens); ++row) {
        const std::span<float> read = std::span(key).first(shape.key_dim);
        load_kv_row(shape.key_format, params.kv.key_row(run, kv_head, row), read);
        if (is_turned(shape.key_format)) turn_kv_row(read);
        load_kv_row(shape.value_format, params.kv.value_row(run, kv_head, row), value);
        params.value_norms.row(kv_head)[row] = norm_of(value);  // turned or not
        if (shape.key_goes_on) {
          if (is_turned(shape.value_format)) turn_kv_row(value);
          std::copy(value.begin(), value.end(), key.begin() + shape.key_dim);
        }
        for (uint32_t h = kv_head * group; h < (kv_head + 1) * group; ++h)
          params.scores.row(h)[row] = score_of(moments[h], key.data(), width, params.scale);
      }
    }
  });
}

}  // namespace quire
