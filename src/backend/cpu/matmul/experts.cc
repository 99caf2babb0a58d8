#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "backend/cpu/cpu_backend.h"
#include "base/check.h"

namespace quire {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

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

void score(RouterScore kind, std::span<float> values) {
  switch (kind) {
    case RouterScore::softmax:
      return softmax(values);
    case RouterScore::sigmoid:
      for (float& x : values) x = 1.0f / (1.0f + std::exp(-x));
      return;
    case RouterScore::sqrt_softplus:  // ln(1 + e^x) = max(x, 0) + ln(1 + e^-|x|)
      for (float& x : values) x = std::sqrt(std::max(x, 0.0f) + std::log1p(std::exp(-std::fabs(x))));
      return;
    case RouterScore::softmax_of_chosen:
    case RouterScore::sparse_mixer:
      return;
  }
}

// Leaves those of the best groups a chance, and no others.
void keep_groups(const Routing& routing, std::span<float> scores) {
  if (routing.groups <= 1) return;
  const size_t size = scores.size() / routing.groups;
  const size_t summed = std::min<size_t>(routing.group_best, size);
  std::vector<float> of_groups(routing.groups), sorted(size);
  for (size_t g = 0; g < routing.groups; ++g) {
    std::copy_n(scores.begin() + ptrdiff_t(g * size), size, sorted.begin());
    std::partial_sort(sorted.begin(), sorted.begin() + ptrdiff_t(summed), sorted.end(), std::greater());
    for (size_t i = 0; i < summed; ++i) of_groups[g] += sorted[i];
  }
  std::vector<uint32_t> kept(routing.groups_used);
  best(of_groups, kept);
  for (uint32_t e = 0; e < scores.size(); ++e) {
    if (std::ranges::find(kept, e / uint32_t(size)) == kept.end()) scores[e] = kNever;
  }
}

// A share is the softmax among those left that are no further below the best than `nearness` says.
void mix_sparsely(float nearness, std::span<const float> scores, std::span<uint32_t> experts,
                  std::span<float> shares) {
  std::vector<float> left(scores.begin(), scores.end());
  for (size_t k = 0; k < experts.size(); ++k) {
    best(left, experts.subspan(k, 1));
    const float most = left[experts[k]];
    float sum = 0;
    for (size_t e = 0; e < left.size(); ++e) {
      const float distance = (most - scores[e]) / std::max(std::fabs(scores[e]), most);
      if (left[e] != kNever && !(distance > nearness)) sum += std::exp(left[e] - most);
    }
    shares[k] = 1.0f / std::max(sum, kLeastShareSum);
    left[experts[k]] = kNever;
  }
}

void route(const RouteExpertsParams& params, std::span<float> scores, std::span<uint32_t> experts,
           std::span<float> shares) {
  const Routing& routing = params.routing;
  for (float& value : scores) {
    if (std::isnan(value)) value = kNever;  // no order survives NaN
  }
  if (routing.score == RouterScore::sparse_mixer)
    return mix_sparsely(routing.nearness, scores, experts, shares);
  score(routing.score, scores);
  if (params.by_token) {
    // They are there already.
  } else if (params.choice_bias || routing.groups > 1) {
    std::vector<float> choice(scores.begin(), scores.end());
    if (params.choice_bias) {
      for (size_t e = 0; e < choice.size(); ++e) choice[e] += params.choice_bias.vector()[e];
    }
    keep_groups(routing, choice);
    best(choice, experts);
  } else {
    best(scores, experts);
  }
  for (size_t i = 0; i < experts.size(); ++i) shares[i] = scores[experts[i]];
  if (routing.score == RouterScore::softmax_of_chosen) {
    softmax(shares);
  } else if (routing.normalized) {
    float sum = 0;
    for (float share : shares) sum += share;
    sum = std::max(sum, kLeastShareSum);
    for (float& share : shares) share /= sum;
  }
  if (routing.scale != 1) {
    for (float& share : shares) share *= routing.scale;
  }
  if (!params.share_scales) return;
  for (size_t i = 0; i < experts.size(); ++i) shares[i] *= params.share_scales.vector()[experts[i]];
}

}  // namespace

void CpuBackend::route_experts(const RouteExpertsParams& params) {
  const size_t tokens = params.in.f32.rows;
  const size_t count = params.router.view.rows;
  CHECK(params.routing.groups >= 1 && count % params.routing.groups == 0);
  std::vector<float> scores(tokens * count);
  Product router = product(params.in, params.router, params.bias, {scores.data(), tokens, count, count});
  run({&router, 1});
  for (size_t t = 0; t < tokens; ++t) {
    if (params.by_token) {
      const MatrixView& table = params.by_token.view;
      CHECK(table.dtype == DType::i32 && table.cols == params.used &&
            params.routing.score != RouterScore::sparse_mixer);
      const size_t row = batch_.tokens[t] < table.rows ? batch_.tokens[t] : 0;
      std::memcpy(params.experts.data() + t * params.used, table.row(row), params.used * sizeof(uint32_t));
    }
    route(params, {scores.data() + t * count, count}, params.experts.subspan(t * params.used, params.used),
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
  const bool gated = bool(params.gate);
  CHECK(!gated || form_for(params.gate.view.dtype) == form_for(params.up.view.dtype));

  const size_t in_width = params.in.f32.width;
  const bool sums_columns = !params.up_sums.squares.empty() || !params.gate_sums.squares.empty() ||
                            !params.down_sums.squares.empty();
  const ActivationForm in_form = form_for(params.up.view.dtype);
  // A token's row has been quantized already, unless it is multiplied first.
  const bool is_quantized = in_form != ActivationForm::f32 && params.in.forms.has(in_form) &&
                            params.share_use != ShareUse::of_inputs;
  const bool takes_floats = !is_quantized || sums_columns;
  const size_t in_bytes = activation_bytes(in_form, in_width);
  CHECK(!is_quantized || params.in.stride[size_t(in_form)] == in_bytes);
  experts_.in_rows.resize(takes_floats ? order.size() * in_width : 0);
  float* const in_rows = experts_.in_rows.data();
  experts_.in.resize(order.size() * in_bytes);
  experts_.hidden.resize(order.size() * activation_bytes(form_for(params.down.view.dtype), width));
  experts_.gate.resize(order.size() * width);
  experts_.up.resize(order.size() * width);
  experts_.down.resize(order.size() * dim);
  pool_.parallel_for(order.size(), 1, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      const size_t token = order[i] / used;
      float* row = in_rows + i * in_width;
      if (takes_floats) std::memcpy(row, params.in.f32.row(token), in_width * sizeof(float));
      if (is_quantized) {
        std::memcpy(experts_.in.data() + i * in_bytes, params.in.data[size_t(in_form)] + token * in_bytes,
                    in_bytes);
        continue;
      }
      if (params.share_use == ShareUse::of_inputs) {
        for (size_t c = 0; c < in_width; ++c) row[c] *= params.shares[order[i]];
      }
      quantize_for(params.up, row, in_width, experts_.in.data(), i);
    }
  });

  std::vector<uint32_t> expert_of;  // of the sorted rows, where their columns are asked for
  if (sums_columns) {
    expert_of.reserve(order.size());
    for (const uint32_t place : order) expert_of.push_back(params.experts[place]);
    const Rows read{in_rows, order.size(), in_width, in_width};
    tap_columns(read, expert_of, params.gate_sums);
    tap_columns(read, expert_of, params.up_sums);
  }

  std::vector<Product> first;
  std::vector<Product> second;
  for (size_t begin = 0; begin < order.size();) {
    const uint32_t expert = params.experts[order[begin]];
    size_t end = begin;
    while (end < order.size() && params.experts[order[end]] == expert) ++end;
    const auto bias = [&](const Weight& w, size_t rows) { return w ? w.vector() + expert * rows : nullptr; };
    const auto [in, in_stride] = input_of(params.up, in_rows, experts_.in.data(), begin, in_width);
    const auto [mid, mid_stride] =
        input_of(params.down, experts_.gate.data(), experts_.hidden.data(), begin, width);
    const auto of = [&](const Weight& w, size_t rows, const Weight& its_bias, const std::byte* input,
                        size_t stride, float* out) {
      return Product{.weight = w.view.slice(expert * rows, rows),
                     .panels = panels_of(w, rows, expert),
                     .scale = w.scale(expert),
                     .bias = bias(its_bias, rows),
                     .in = input,
                     .in_stride = stride,
                     .tokens = end - begin,
                     .out = out + begin * rows,
                     .out_stride = rows};
    };
    if (gated) first.push_back(of(params.gate, width, params.gate_bias, in, in_stride, experts_.gate.data()));
    first.push_back(of(params.up, width, params.up_bias, in, in_stride, experts_.up.data()));
    second.push_back(of(params.down, dim, params.down_bias, mid, mid_stride, experts_.down.data()));
    begin = end;
  }
  run(first);
  pool_.parallel_for(order.size(), 1, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      float *gate = experts_.gate.data() + i * width, *up = experts_.up.data() + i * width;
      kernels_.activate(params.function, gated ? gate : up, gated ? up : nullptr, gate, width);
      quantize_for(params.down, gate, width, experts_.hidden.data(), i);
    }
  });
  tap_columns({experts_.gate.data(), order.size(), width, width}, expert_of, params.down_sums);
  run(second);

  std::vector<uint32_t> row_of(order.size());
  for (size_t i = 0; i < order.size(); ++i) row_of[order[i]] = uint32_t(i);
  pool_.parallel_for(tokens, 1, [&](size_t begin, size_t end) {
    for (size_t t = begin; t < end; ++t) {
      float* out = params.out.row(t);
      std::fill_n(out, dim, 0.0f);
      for (size_t place = t * used; place < (t + 1) * used; ++place) {
        const float* row = experts_.down.data() + row_of[place] * dim;
        const float share = params.share_use == ShareUse::of_outputs ? params.shares[place] : 1.0f;
        for (size_t c = 0; c < dim; ++c) out[c] += share * row[c];
      }
    }
  });
}

}  // namespace quire
