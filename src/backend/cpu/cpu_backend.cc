#include "backend/cpu/cpu_backend.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/cpu/lanes.h"
#include "base/check.h"
#include "tensor/quantize.h"

namespace quire {
namespace {

constexpr size_t kFewTokens = 4;

}  // namespace

CpuBackend::CpuBackend(CpuKernels kernels, uint32_t threads)
    : kernels_(kernels), unpacked_(scalar_kernels()), pool_(threads) {}

Weight CpuBackend::prepare(const Weight& weight, size_t stacked) {
  const PanelFormat& format = kernels_.panels[size_t(weight.view.dtype)];
  if (!weight || format.pack == nullptr) return weight;
  const MatrixView& view = weight.view;
  const size_t rows = view.rows / stacked, panels = (rows + kPanelRows - 1) / kPanelRows;
  const size_t bytes = format.panel_bytes(view.cols);
  const auto packed = std::make_shared<const Buffer>(stacked * panels * bytes);
  packed->use_large_pages();
  pool_.parallel_for(stacked * panels, 4, [&](size_t begin, size_t end) {
    for (size_t p = begin; p < end; ++p) {
      format.pack(view.slice(p / panels * rows, rows), p % panels, packed->data() + p * bytes);
    }
  });
  Weight result = weight;
  result.packed = packed;
  return result;
}

const std::byte* CpuBackend::panels_of(const Weight& weight, size_t rows, size_t index) const {
  if (weight.packed == nullptr) return nullptr;
  const size_t bytes = kernels_.panels[size_t(weight.view.dtype)].panel_bytes(weight.view.cols);
  return weight.packed->data() + index * ((rows + kPanelRows - 1) / kPanelRows) * bytes;
}

size_t CpuBackend::activation_bytes(ActivationForm form, size_t width) const {
  return activation_row_bytes(form, width);
}

void CpuBackend::quantize(const Activation& activation, size_t row) const {
  for (size_t form = kFirstQuantizedForm; form < kActivationFormCount; ++form) {
    if (!activation.forms.has(ActivationForm(form))) continue;
    kernels_.quantize_activation[form](activation.f32.row(row), activation.f32.width,
                                       activation.data[form] + row * activation.stride[form]);
  }
}

void CpuBackend::embed(const EmbedParams& params) {
  const MatrixView& table = params.table.view;
  pool_.parallel_for(batch_.tokens.size(), 8, [&](size_t begin, size_t end) {
    for (size_t t = begin; t < end; ++t) {
      float* out = params.out.row(t);
      dequantize_row(table.dtype, table.row(batch_.tokens[t]), {out, table.cols});
      for (size_t i = 0; i < table.cols; ++i) out[i] *= params.scale;
      if (params.positions) {
        const float* row = params.positions.vector() + size_t(batch_.positions[t]) * table.cols;
        for (size_t i = 0; i < table.cols; ++i) out[i] += row[i];
      }
    }
  });
}

CpuBackend::Product CpuBackend::product(const Activation& in, const Weight& weight, const Weight& bias,
                                        const Rows& out) const {
  const ActivationForm form = form_for(weight.view.dtype);
  CHECK(weight.view.cols == in.f32.width && weight.view.rows == out.width);
  CHECK(form == ActivationForm::f32 || in.forms.has(form));
  Product product{.weight = weight.view,
                  .panels = panels_of(weight, weight.view.rows, 0),
                  .bias = bias ? bias.vector() : nullptr,
                  .tokens = in.f32.rows,
                  .out = out.data,
                  .out_stride = out.stride};
  if (form == ActivationForm::f32) {
    product.in = reinterpret_cast<const std::byte*>(in.f32.data);
    product.in_stride = in.f32.stride * sizeof(float);
  } else {
    product.in = in.data[size_t(form)];
    product.in_stride = in.stride[size_t(form)];
  }
  return product;
}

void CpuBackend::run(std::span<const Product> products) {
  size_t rows = 0;
  for (const Product& product : products) rows += product.weight.rows;
  // Blocks small enough that every thread gets several, large enough that unpacked rows are reused. With few tokens the
  // weights stream from memory, and what is fetched ahead at the end of a block should be the thread's own next rows.
  size_t tokens = 0;
  for (const Product& product : products) tokens = std::max(tokens, product.tokens);
  const size_t wanted = tokens <= kFewTokens ? rows / (pool_.size() * 3) : rows / (pool_.size() * 8);
  const size_t most = tokens <= kFewTokens ? 64 * kPanelRows : 4 * kPanelRows;
  const size_t block = std::clamp<size_t>(wanted / kPanelRows * kPanelRows, kPanelRows, most);
  struct Block {
    const Product* product;
    size_t begin, end;
  };
  std::vector<Block> blocks;
  for (const Product& product : products) {
    for (size_t begin = 0; begin < product.weight.rows; begin += block) {
      blocks.push_back({&product, begin, std::min(begin + block, product.weight.rows)});
    }
  }
  pool_.parallel_for(blocks.size(), 1, [&](size_t first, size_t last) {
    for (size_t i = first; i < last; ++i) {
      const auto& [product, begin, end] = blocks[i];
      const size_t type = size_t(product->weight.dtype);
      const bool needs_panels = kernels_.panels[type].pack != nullptr;
      const CpuKernels& kernels = needs_panels && product->panels == nullptr ? unpacked_ : kernels_;
      kernels.matmul[type]({.weight = product->weight,
                            .panels = product->panels,
                            .input = product->in,
                            .input_stride_bytes = product->in_stride,
                            .tokens = product->tokens,
                            .row_begin = begin,
                            .row_end = end,
                            .out = product->out,
                            .out_stride = product->out_stride});
      if (product->bias == nullptr) continue;
      for (size_t t = 0; t < product->tokens; ++t) {
        float* out = product->out + t * product->out_stride;
        for (size_t r = begin; r < end; ++r) out[r] += product->bias[r];
      }
    }
  });
}

void CpuBackend::project(const ProjectParams& params) {
  std::vector<Product> products;
  products.reserve(params.projections.size());
  for (const Projection& p : params.projections)
    products.push_back(product(params.in, p.weight, p.bias, p.out));
  run(products);
}

void CpuBackend::activate(const ActivateParams& params) {
  pool_.parallel_for(params.out.f32.rows, 1, [&](size_t begin, size_t end) {
    for (size_t t = begin; t < end; ++t) {
      kernels_.activate(params.function, params.gate.row(t), params.up ? params.up.row(t) : nullptr,
                        params.out.f32.row(t), params.out.f32.width);
      quantize(params.out, t);
    }
  });
}

void CpuBackend::logits(const LogitsParams& params) {
  if (params.in.f32.rows == 0) return;
  const Product head = product(params.in, params.head, params.bias, params.out);
  run({&head, 1});
  if (params.scale == 1 && params.soft_cap == 0) return;
  pool_.parallel_for(params.out.rows, 1, [&](size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row) {
      float* out = params.out.row(row);
      for (size_t i = 0; i < params.out.width; ++i) {
        out[i] *= params.scale;
        if (params.soft_cap > 0) out[i] = params.soft_cap * std::tanh(out[i] / params.soft_cap);
      }
    }
  });
}

}  // namespace quire
