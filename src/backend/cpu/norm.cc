#include "backend/cpu/norm.h"

#include <cmath>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/lanes.h"
#include "base/check.h"

namespace quire {

void norm_row(const Norm& norm, const float* in, float* out, size_t width, size_t first_weight) {
  if (norm.kind == NormKind::none) {
    for (size_t i = 0; i < width; ++i) out[i] = in[i];
    return;
  }
  const float* weight = norm.weight ? norm.weight.vector() + first_weight : nullptr;
  if (norm.kind == NormKind::rms) {
    const float scale = 1.0f / std::sqrt(dot(in, in, width) / float(width) + norm.epsilon);
    if (weight == nullptr) {
      for (size_t i = 0; i < width; ++i) out[i] = in[i] * scale;
      return;
    }
    for (size_t i = 0; i < width; ++i) out[i] = in[i] * scale * weight[i];
    return;
  }
  const float mean = sum(in, width) / float(width);
  for (size_t i = 0; i < width; ++i) out[i] = in[i] - mean;
  const float scale = 1.0f / std::sqrt(dot(out, out, width) / float(width) + norm.epsilon);
  const float* bias = norm.bias ? norm.bias.vector() + first_weight : nullptr;
  for (size_t i = 0; i < width; ++i) {
    const float value = weight == nullptr ? out[i] * scale : out[i] * scale * weight[i];
    out[i] = value + (bias != nullptr ? bias[i] : 0.0f);
  }
}

namespace {

// `normed` has room for a row.
void add_branch(const NormQuantizeParams& params, size_t row, std::vector<float>& normed) {
  if (!params.branch) return;
  const size_t width = params.stream.width;
  float* stream = params.stream.row(row);
  const float* branch = params.branch.row(row);
  if (params.branch_norm != nullptr) {
    normed.resize(width);
    norm_row(*params.branch_norm, branch, normed.data(), width);
    branch = normed.data();
  }
  float scale = params.branch_scale;
  if (params.branch_gate) scale *= 1.0f / (1.0f + std::exp(-params.branch_gate.row(row)[0]));
  for (size_t c = 0; c < width; ++c) stream[c] += scale * branch[c];
  if (params.stream_scale == 1) return;
  for (size_t c = 0; c < width; ++c) stream[c] *= params.stream_scale;
}

}  // namespace

void CpuBackend::norm_quantize(const NormQuantizeParams& params) {
  using Order = NormQuantizeParams::Order;
  const size_t width = params.stream.width;
  CHECK(params.norm == nullptr || params.out.f32.width == width);
  const size_t rows = params.norm == nullptr ? params.stream.rows : params.out.f32.rows;
  pool_.parallel_for(rows, 1, [&](size_t begin, size_t end) {
    std::vector<float> normed;
    for (size_t i = begin; i < end; ++i) {
      const size_t row = params.rows.empty() ? i : params.rows[i];
      if (params.order == Order::add_then_norm) add_branch(params, row, normed);
      if (params.norm != nullptr) {
        norm_row(*params.norm, params.stream.row(row), params.out.f32.row(i), width);
        quantize(params.out, i);
      }
      if (params.order == Order::norm_then_add) add_branch(params, row, normed);
    }
  });
}

}  // namespace quire
