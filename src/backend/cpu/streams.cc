#include <algorithm>
#include <cmath>

#include "backend/cpu/cpu_backend.h"
#include "base/check.h"

// Streams side by side. A token's numbers depend on its own rows alone, and are computed in one order.

namespace quire {
namespace {

constexpr float kLeastMeanSquare = 1e-5f;  // of a row that is made as large as another

float mean_square(const float* row, size_t width) {
  double sum = 0;
  for (size_t i = 0; i < width; ++i) sum += double(row[i]) * double(row[i]);
  return float(sum / double(width));
}

// What makes a row as large as the stream.
float growth(float stream_square, const float* row, size_t width) {
  return std::sqrt(stream_square) / std::sqrt(std::max(mean_square(row, width), kLeastMeanSquare));
}

// The coefficients of a token: [count of rows].
void mix(const MixStreamsParams& params, size_t token, std::vector<float>& coefficients) {
  const size_t count = params.count;
  const float* weights = params.coefficients.vector();
  const float* routed = params.routed.row(token);
  coefficients.resize(params.coefficients.view.rows * params.coefficients.view.cols / count);
  for (size_t i = 0; i < coefficients.size(); ++i) {
    float sum = 0;
    for (size_t k = 0; k < count; ++k) sum += weights[i * count + k] * std::tanh(routed[k]);
    coefficients[i] = sum;
  }
}

void open(const MixStreamsParams& params, size_t token) {
  const size_t dim = params.stream.width;
  float* others = params.streams.row(token);
  const float square = mean_square(params.stream.row(token), dim);
  for (size_t s = 1; s < params.count; ++s) {
    float* other = others + s * dim;
    const float factor = growth(square, other, dim);
    for (size_t i = 0; i < dim; ++i) other[i] *= factor;
  }
}

void close(const MixStreamsParams& params, size_t token) {
  const size_t dim = params.stream.width;
  float* stream = params.stream.row(token);
  const float* others = params.streams.row(token);
  const float square = mean_square(stream, dim);
  for (size_t s = 1; s < params.count; ++s) {
    const float* other = others + s * dim;
    const float factor = growth(square, other, dim);
    for (size_t i = 0; i < dim; ++i) stream[i] += factor * other[i];
  }
  for (size_t i = 0; i < dim; ++i) stream[i] /= float(params.count);
}

void predict(const MixStreamsParams& params, size_t token, const std::vector<float>& coefficients,
             std::vector<float>& before) {
  const size_t dim = params.stream.width, count = params.count;
  float* streams = params.streams.row(token);
  before.assign(streams, streams + count * dim);
  std::copy_n(params.stream.row(token), dim, before.begin());
  for (size_t s = 0; s < count; ++s) {
    float* out = s == 0 ? params.out.row(token) : streams + s * dim;
    const float* shares = coefficients.data() + s * count;
    for (size_t i = 0; i < dim; ++i) {
      float sum = 0;
      for (size_t from = 0; from < count; ++from) sum += shares[from] * before[from * dim + i];
      out[i] = s == 0 ? sum : before[s * dim + i] + sum;
      if (s == 0) streams[i] = before[i] + sum;
    }
  }
}

void correct(const MixStreamsParams& params, size_t token, const std::vector<float>& coefficients) {
  const size_t dim = params.stream.width;
  const float* stream = params.stream.row(token);
  float *streams = params.streams.row(token), *out = params.out.row(token);
  float* corrected = params.corrected.f32.row(token);
  for (size_t i = 0; i < dim; ++i) {
    const float change = stream[i] - streams[i];
    out[i] = coefficients[0] * change;
    corrected[i] = (stream[i] + out[i]) * params.scale.vector()[i];
    for (size_t s = 1; s < params.count; ++s) streams[s * dim + i] += (1 + coefficients[s]) * change;
  }
}

}  // namespace

void CpuBackend::mix_streams(const MixStreamsParams& params) {
  using What = MixStreamsParams::What;
  CHECK(params.streams.width == params.count * params.stream.width);
  pool_.parallel_for(params.stream.rows, 1, [&](size_t begin, size_t end) {
    std::vector<float> coefficients, before;
    for (size_t token = begin; token < end; ++token) {
      if (params.what == What::open) {
        open(params, token);
      } else if (params.what == What::close) {
        close(params, token);
      } else {
        mix(params, token, coefficients);
        if (params.what == What::predict) {
          predict(params, token, coefficients, before);
        } else {
          correct(params, token, coefficients);
          quantize(params.corrected, token);
        }
      }
    }
  });
}

void CpuBackend::cut_below(const Rows& rows, float spread) {
  pool_.parallel_for(rows.rows, 1, [&](size_t begin, size_t end) {
    for (size_t r = begin; r < end; ++r) {
      float* row = rows.row(r);
      double sum = 0, squares = 0;
      for (size_t i = 0; i < rows.width; ++i) sum += double(row[i]);
      const double mean = sum / double(rows.width);
      for (size_t i = 0; i < rows.width; ++i) squares += (double(row[i]) - mean) * (double(row[i]) - mean);
      const float cut = float(mean + std::sqrt(squares / double(rows.width)) * double(spread));
      for (size_t i = 0; i < rows.width; ++i) row[i] = std::max(row[i] - cut, 0.0f);
    }
  });
}

}  // namespace quire
