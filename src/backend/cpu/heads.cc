#include <algorithm>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "base/check.h"

// Heads one by one: a row is so many rows side by side.

namespace quire {

// Every head's rows are those of a product of its own. They are the same whatever tokens are beside them.
void CpuBackend::project_heads(const ProjectHeadsParams& params) {
  const size_t tokens = params.in.rows, heads = params.heads, cols = params.weight.view.cols;
  const size_t rows = params.weight.view.rows / heads, head_dim = params.in.width / heads;
  CHECK(params.weight.view.rows == heads * rows && params.in.width == heads * head_dim && cols <= head_dim);
  const size_t rest = head_dim - cols, out_dim = rest + rows;
  const Rows& out = params.out.f32;
  CHECK(out.width == heads * out_dim && out.rows == tokens);
  const ActivationForm form = form_for(params.weight.view.dtype);
  const bool rounded = form != ActivationForm::f32;
  const size_t stride = rounded ? activation_bytes(form, cols) : params.in.stride * sizeof(float);
  if (rounded) head_rows_.resize(std::max(head_rows_.size(), heads * tokens * stride));
  if (rounded || rest > 0) {
    pool_.parallel_for(tokens * heads, 4, [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) {
        const size_t token = i / heads, head = i % heads;
        const float* in = params.in.row(token) + head * head_dim;
        std::copy_n(in + cols, rest, out.row(token) + head * out_dim);
        if (rounded)
          kernels_.quantize_activation[size_t(form)](in, cols,
                                                     head_rows_.data() + (head * tokens + token) * stride);
      }
    });
  }
  std::vector<Product> products;
  products.reserve(heads);
  for (size_t head = 0; head < heads; ++head) {
    const auto* plain = reinterpret_cast<const std::byte*>(params.in.data + head * head_dim);
    products.push_back({.weight = params.weight.view.slice(head * rows, rows),
                        .panels = panels_of(params.weight, rows, head),
                        .scale = params.weight.scale(head),
                        .in = rounded ? head_rows_.data() + head * tokens * stride : plain,
                        .in_stride = stride,
                        .tokens = tokens,
                        .out = out.data + head * out_dim + rest,
                        .out_stride = out.stride});
  }
  run(products);
  if (params.out.forms.bits == 0) return;
  pool_.parallel_for(tokens, 1, [&](size_t begin, size_t end) {
    for (size_t t = begin; t < end; ++t) quantize(params.out, t);
  });
}

}  // namespace quire
