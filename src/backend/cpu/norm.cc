#include "backend/cpu/norm.h"

#include <cmath>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/lanes.h"
#include "base/check.h"

namespace quire {

void norm_row(const Norm& norm, const float* in, float* out, size_t width) {
  if (norm.kind == NormKind::none) {
    for (size_t i = 0; i < width; ++i) out[i] = in[i];
    return;
  }
  const float* weight = norm.weight ? norm.weight.vector() : nullptr;
  if (norm.kind == NormKind::rms) {
    const float scale = 1.0f / std::sqrt(dot(in, in, width) / float(width) + norm.epsilon);
    for (size_t i = 0; i < width; ++i) out[i] = in[i] * scale * weight[i];
    return;
  }
  const float mean = sum(in, width) / float(width);
  for (size_t i = 0; i < width; ++i) out[i] = in[i] - mean;
  const float scale = 1.0f / std::sqrt(dot(out, out, width) / float(width) + norm.epsilon);
  const float* bias = norm.bias ? norm.bias.vector() : nullptr;
  for (size_t i = 0; i < width; ++i) out[i] = out[i] * scale * weight[i] + (bias != nullptr ? bias[i] : 0.0f);
}

void CpuBackend::norm_quantize(const NormQuantizeParams& params) {
  const size_t width = params.stream.width;
  CHECK(params.out.f32.width == width);
  pool_.parallel_for(params.out.f32.rows, 1, [&](size_t begin, size_t end) {
    std::vector<float> normed(params.branch_norm != nullptr ? width : 0);
    for (size_t i = begin; i < end; ++i) {
      const size_t row = params.rows.empty() ? i : params.rows[i];
      float* stream = params.stream.row(row);
      if (params.branch) {
        const float* branch = params.branch.row(row);
        if (params.branch_norm != nullptr) {
          norm_row(*params.branch_norm, branch, normed.data(), width);
          branch = normed.data();
        }
        for (size_t c = 0; c < width; ++c) stream[c] += params.branch_scale * branch[c];
      }
      norm_row(*params.norm, stream, params.out.f32.row(i), width);
      quantize(params.out, i);
    }
  });
}

}  // namespace quire
