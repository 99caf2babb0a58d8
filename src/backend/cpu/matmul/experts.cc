#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "backend/cpu/cpu_backend.h"
#include "base/check.h"

namespace quire {
namespace {

void softmax(std::span<float> values) {
  const float max = *std::max_element(values.begin(), values.end());
  float sum = 0;
  for (float& value : values) sum += value = std::exp(value - max);
  for (float& value : values) value /= sum;
}

// The `used` best of `scores`, best first, the lower index first among equals.
void best(std::span<const float> scores, std::span<uint32_t> experts) {
  std::vector<uint32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0u);
  std::partial_sort(
      order.begin(), order.begin() + ptrdiff_t(experts.size()), order.end(),
      [&](uint32_t a, uint32_t b) { return scores[a] != scores[b] ? scores[a] > scores[b] : a < b; });
  std::copy_n(order.begin(), experts.size(), experts.begin());
}

void route(Routing routing, std::span<float> scores, std::span<uint32_t> experts, std::span<float> shares) {
  for (float& score : scores) {
    if (std::isnan(score)) score = -std::numeric_limits<float>::infinity();  // no order survives NaN
  }
  if (routing != Routing::top_then_softmax) softmax(scores);
  best(scores, experts);
  for (size_t i = 0; i < experts.size(); ++i) shares[i] = scores[experts[i]];
  if (routing == Routing::top_then_softmax) softmax(shares);
  if (routing == Routing::softmax_then_top_normalized) {
    float sum = 0;
    for (float share : shares) sum += share;
    for (float& share : shares) share /= sum;
  }
}

}  // namespace

void CpuBackend::route_experts(const RouteExpertsParams& params) {
  const size_t tokens = params.in.f32.rows;
  const size_t count = params.router.view.rows;
  std::vector<float> scores(tokens * count);
  Product router = product(params.in, params.router, params.bias, {scores.data(), tokens, count, count});
  run({&router, 1});
  for (size_t t = 0; t < tokens; ++t) {
    route(params.routing, {scores.data() + t * count, count},
          params.experts.subspan(t * params.used, params.used),
          params.shares.subspan(t * params.used, params.used));
  }
}

// Rows are gathered by expert, so that each expert's weights are read once per step; every row's own
// arithmetic is that of a single token, and a token adds its experts in the order of its routing.
void CpuBackend::project_experts(const ProjectExpertsParams& params) {
  const size_t tokens = params.in.f32.rows;
  const size_t used = params.used;
  const size_t dim = params.out.width;
  const size_t width = params.expert_width;
  std::vector<uint32_t> order(tokens * used);  // (token, place) pairs, sorted by expert
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return params.experts[a] < params.experts[b]; });

  const auto input_of = [&](const Weight& weight, const float* f32, std::byte* quantized, size_t row,
                            size_t cols) {
    const ActivationForm form = form_for(weight.view.dtype);
    const size_t stride = form == ActivationForm::f32 ? cols * sizeof(float) : activation_bytes(form, cols);
    const std::byte* base = form == ActivationForm::f32 ? reinterpret_cast<const std::byte*>(f32) : quantized;
    return std::pair(base + row * stride, stride);
  };
  const auto quantize_for = [&](const Weight& weight, const float* row, size_t cols, std::byte* base,
                                size_t index) {
    const ActivationForm form = form_for(weight.view.dtype);
    if (form == ActivationForm::f32) return;
    kernels_.quantize_activation[size_t(form)](row, cols, base + index * activation_bytes(form, cols));
  };
  CHECK(form_for(params.gate.view.dtype) == form_for(params.up.view.dtype));

  const size_t in_width = params.in.f32.width;
  std::vector<float> in_rows(order.size() * in_width);
  experts_.in.resize(order.size() * activation_bytes(form_for(params.gate.view.dtype), in_width));
  experts_.hidden.resize(order.size() * activation_bytes(form_for(params.down.view.dtype), width));
  experts_.gate.resize(order.size() * width);
  experts_.up.resize(order.size() * width);
  experts_.down.resize(order.size() * dim);
  pool_.parallel_for(order.size(), 1, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      float* row = in_rows.data() + i * in_width;
      std::memcpy(row, params.in.f32.row(order[i] / used), in_width * sizeof(float));
      quantize_for(params.gate, row, in_width, experts_.in.data(), i);
    }
  });

  std::vector<Product> first;
  std::vector<Product> second;
  for (size_t begin = 0; begin < order.size();) {
    const uint32_t expert = params.experts[order[begin]];
    size_t end = begin;
    while (end < order.size() && params.experts[order[end]] == expert) ++end;
    const auto bias = [&](const Weight& w, size_t rows) { return w ? w.vector() + expert * rows : nullptr; };
    const auto [in, in_stride] = input_of(params.gate, in_rows.data(), experts_.in.data(), begin, in_width);
    const auto [mid, mid_stride] =
        input_of(params.down, experts_.gate.data(), experts_.hidden.data(), begin, width);
    const auto of = [&](const Weight& w, size_t rows, const Weight& its_bias, const std::byte* input,
                        size_t stride, float* out) {
      return Product{.weight = w.view.slice(expert * rows, rows),
                     .panels = panels_of(w, rows, expert),
                     .bias = bias(its_bias, rows),
                     .in = input,
                     .in_stride = stride,
                     .tokens = end - begin,
                     .out = out + begin * rows,
                     .out_stride = rows};
    };
    first.push_back(of(params.gate, width, params.gate_bias, in, in_stride, experts_.gate.data()));
    first.push_back(of(params.up, width, params.up_bias, in, in_stride, experts_.up.data()));
    second.push_back(of(params.down, dim, params.down_bias, mid, mid_stride, experts_.down.data()));
    begin = end;
  }
  run(first);
  pool_.parallel_for(order.size(), 1, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      float* gate = experts_.gate.data() + i * width;
      kernels_.activate(params.function, gate, experts_.up.data() + i * width, gate, width);
      quantize_for(params.down, gate, width, experts_.hidden.data(), i);
    }
  });
  run(second);

  std::vector<uint32_t> row_of(order.size());
  for (size_t i = 0; i < order.size(); ++i) row_of[order[i]] = uint32_t(i);
  pool_.parallel_for(tokens, 1, [&](size_t begin, size_t end) {
    for (size_t t = begin; t < end; ++t) {
      float* out = params.out.row(t);
      std::fill_n(out, dim, 0.0f);
      for (size_t place = t * used; place < (t + 1) * used; ++place) {
        const float* row = experts_.down.data() + row_of[place] * dim;
        for (size_t c = 0; c < dim; ++c) out[c] += params.shares[place] * row[c];
      }
    }
  });
}

}  // namespace quire
