#include "backend/cpu/cpu_backend.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include <fmt/format.h>

#include "backend/cpu/lanes.h"
#include "backend/cpu/yardstick.h"
#include "base/check.h"
#include "base/memory.h"
#include "tensor/quantize.h"

namespace quire {
namespace {

constexpr size_t kLargePageBytes = 2 << 20;     // of the usual machine
constexpr size_t kPartCols = 2 * kOutlierSpan;  // of a row that threads share
constexpr size_t kPartBytes = 4 * kPartCols;
constexpr size_t kLeastRows = 2 * kPanelRows, kMostRows = 32 * kPanelRows;  // of a block with many tokens
constexpr size_t kPartTokens = 32;       // kernels take tokens by so many at most
constexpr size_t kLeastPartTokens = 64;  // that are worth unpacking rows for once more
constexpr size_t kBf16PartTokens = 256;  // whose inputs stay in a cache for a thread's next rows

struct BlockRows {
  size_t large, small;
};

size_t round_up(size_t n, size_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

}  // namespace

CpuBackend::CpuBackend(CpuKernels kernels, uint32_t threads)
    : kernels_(kernels), unpacked_(kernels.twin()), pool_(threads) {}

BackendTraits CpuBackend::traits() const {
  return {
      .device = "cpu",
      .description = fmt::format("{} thread{} with {}", threads(), threads() == 1 ? "" : "s", kernels_.name),
      .kernels = kernels_.name,
      .threads = threads(),
      .pages = kernels_.pages,
      .weight_scales = true};
}

size_t CpuBackend::available_memory() const {
  return quire::available_memory();
}

std::unique_ptr<Yardstick> CpuBackend::make_yardstick(const YardstickOptions& options) const {
  return std::make_unique<CpuYardstick>(threads(), options);
}

Buffer CpuBackend::allocate(size_t bytes) {
  Buffer buffer(bytes);
  if (bytes >= kLargePageBytes) buffer.use_large_pages();
  return buffer;
}

size_t CpuBackend::prepared_bytes(const MatrixView& weight, const WeightUse& use) const {
  const PanelFormat& format = kernels_.panels[size_t(weight.dtype)];
  if (use.kind != WeightUse::product || format.pack == nullptr) return 0;
  const size_t panels = (weight.rows / use.stacked + kPanelRows - 1) / kPanelRows;
  return use.stacked * panels * format.panel_bytes(weight.cols);
}

Weight CpuBackend::prepare(const Weight& weight, const WeightUse& use) {
  const MatrixView& view = weight.view;
  const size_t total = weight ? prepared_bytes(view, use) : 0;
  if (total == 0) return weight;
  const PanelFormat& format = kernels_.panels[size_t(view.dtype)];
  const size_t rows = view.rows / use.stacked, panels = (rows + kPanelRows - 1) / kPanelRows;
  const size_t bytes = format.panel_bytes(view.cols);
  const auto packed = std::make_shared<const Buffer>(total);
  packed->use_large_pages();
  pool_.parallel_for(use.stacked * panels, 4, [&](size_t begin, size_t end) {
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
  for (size_t form = kFirstRoundedForm; form < kActivationFormCount; ++form) {
    if (!activation.forms.has(ActivationForm(form))) continue;
    kernels_.quantize_activation[form](activation.f32.row(row), activation.f32.width,
                                       activation.data[form] + row * activation.stride[form]);
  }
}

void CpuBackend::quantize_part(const Activation& activation, size_t row, size_t col, size_t count) const {
  if (count == activation.f32.width) return quantize(activation, row);
  if (activation.forms.has(ActivationForm::bf16)) {
    constexpr size_t kForm = size_t(ActivationForm::bf16);
    kernels_.quantize_activation[kForm](
        activation.f32.row(row) + col, count,
        activation.data[kForm] + row * activation.stride[kForm] + col * sizeof(uint16_t));
  }
  for (size_t form = kFirstQuantizedForm; form < kActivationFormCount; ++form) {
    if (!activation.forms.has(ActivationForm(form))) continue;
    const size_t group = group_values(ActivationForm(form));
    alignas(64) std::byte memory[kPartBytes];
    CHECK(activation_row_bytes(ActivationForm(form), count) <= kPartBytes);
    kernels_.quantize_activation[form](activation.f32.row(row) + col, count, memory);
    const Q8Row from(memory, count, group);
    std::byte* whole = activation.data[form] + row * activation.stride[form];
    const MutableQ8Row to(whole, activation.f32.width, group);
    std::memcpy(to.values + col, from.values, count);
    std::memcpy(to.scales + col / group, from.scales, (count + group - 1) / group * sizeof(float));
    std::memcpy(to.scaled_sums + col / 32, from.scaled_sums, count / 32 * sizeof(float));
    std::memcpy(to.sums16 + col / 16, from.sums16, count / 16 * sizeof(int16_t));
    std::memcpy(to.sums32 + col / 32, from.sums32, count / 32 * sizeof(int16_t));
    for (size_t i = 0, span = col / kOutlierSpan; i < outlier_spans(count); ++i, ++span) {
      to.outlier_counts[span] = from.outlier_counts[i];
      std::copy_n(from.outliers + i * most_outliers(group), from.outlier_counts[i],
                  to.outliers + span * most_outliers(group));
    }
  }
}

void CpuBackend::embed(const EmbedParams& params) {
  const MatrixView& table = params.table.view;
  pool_.parallel_for(batch_.tokens.size(), 8, [&](size_t begin, size_t end) {
    for (size_t t = begin; t < end; ++t) {
      float* out = params.out.row(t);
      dequantize_row(table.dtype, table.row(batch_.tokens[t] < table.rows ? batch_.tokens[t] : 0),
                     {out, table.cols});
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
                  .scale = weight.scale(),
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

// Long blocks first, and then short ones until all threads are done. With few tokens weights stream from memory, and what is
// fetched ahead at the end of a block is best the thread's own next rows: a thread gets one long block, and short ones are an
// eighth of its share. With more tokens a block is as long as what is made once for all of its rows is worth.
std::vector<CpuBackend::ProductBlock> CpuBackend::blocks_of(std::span<const Product> products) const {
  size_t rows = 0, tokens = 0;
  for (const Product& product : products) {
    rows += product.weight.rows;
    tokens = std::max(tokens, product.tokens);
  }
  const size_t quarter = rows / 4 / pool_.size();
  BlockRows sizes{
      .large = std::max(round_up(3 * quarter, kPanelRows), kPanelRows),
      .small = std::max(round_up(quarter / 2, kPanelRows), tokens == 1 ? kPanelRows : kLeastRows)};
  size_t parts = 1;
  if (tokens > kernels_.streamed_tokens) {
    sizes.large = std::min(sizes.large, kMostRows);
    sizes.small = std::max(round_up(quarter / 4, kPanelRows), kLeastRows);
    // Where there are not rows enough for all threads, tokens are divided too.
    const size_t row_blocks = (rows + kLeastRows - 1) / kLeastRows;
    parts = std::clamp<size_t>(pool_.size() * 6 / row_blocks, 1, 1 + tokens / kLeastPartTokens);
  }
  std::vector<ProductBlock> blocks, short_blocks;
  for (const Product& product : products) {
    size_t part = tokens > kernels_.streamed_tokens
                      ? round_up((product.tokens + parts - 1) / parts, kPartTokens)
                      : tokens;
    if (form_for(product.weight.dtype) == ActivationForm::bf16) part = std::min(part, kBf16PartTokens);
    for (size_t token = 0; token < product.tokens; token += part) {
      const size_t count = std::min(part, product.tokens - token), end = product.weight.rows;
      size_t begin = 0;
      for (; begin + sizes.large <= end / 4 * 3; begin += sizes.large)
        blocks.push_back({&product, begin, begin + sizes.large, token, count});
      for (; begin < end; begin += sizes.small)
        short_blocks.push_back({&product, begin, std::min(begin + sizes.small, end), token, count});
    }
  }
  blocks.insert(blocks.end(), short_blocks.begin(), short_blocks.end());
  return blocks;
}

void CpuBackend::multiply(const ProductBlock& block) {
  const Product& product = *block.product;
  const size_t type = size_t(product.weight.dtype);
  const bool needs_panels = kernels_.panels[type].pack != nullptr;
  const CpuKernels& kernels = needs_panels && product.panels == nullptr ? unpacked_ : kernels_;
  float* out = product.out + block.token * product.out_stride;
  const std::byte* tiles = product.in_tiles;
  if (tiles != nullptr) {
    CHECK(block.token % kInputTileTokens == 0);
    tiles += block.token / kInputTileTokens * kernels_.inputs[type].tile_bytes(product.weight.cols);
  }
  kernels.matmul[type]({.weight = product.weight,
                        .panels = product.panels,
                        .input = product.in + block.token * product.in_stride,
                        .input_stride_bytes = product.in_stride,
                        .input_tiles = tiles,
                        .tokens = block.tokens,
                        .row_begin = block.row_begin,
                        .row_end = block.row_end,
                        .out = out,
                        .out_stride = product.out_stride,
                        .outliers = &outliers_});
  if (product.scale == 1 && product.bias == nullptr) return;
  for (size_t t = 0; t < block.tokens; ++t, out += product.out_stride) {
    for (size_t r = block.row_begin; product.scale != 1 && r < block.row_end; ++r) out[r] *= product.scale;
    for (size_t r = block.row_begin; product.bias != nullptr && r < block.row_end; ++r)
      out[r] += product.bias[r];
  }
}

void CpuBackend::pack_inputs(std::span<Product> products) {
  struct Part {  // of a tile
    const Product* product;
    size_t token, col;
    size_t at;  // in the tiles, of the whole tile
  };
  std::vector<Part> parts;
  std::vector<size_t> places(products.size(), SIZE_MAX);
  size_t bytes = 0;
  for (size_t i = 0; i < products.size(); ++i) {
    const Product& product = products[i];
    const InputFormat& format = kernels_.inputs[size_t(product.weight.dtype)];
    if (format.pack == nullptr || product.panels == nullptr || product.tokens <= format.most_rows) continue;
    if (i > 0 && places[i - 1] != SIZE_MAX && products[i - 1].in == product.in &&
        kernels_.inputs[size_t(products[i - 1].weight.dtype)].pack == format.pack) {
      places[i] = places[i - 1];  // as K after Q
      continue;
    }
    places[i] = bytes;
    for (size_t t = 0; t < product.tokens;
         t += kInputTileTokens, bytes += format.tile_bytes(product.weight.cols)) {
      for (size_t c = 0; c < product.weight.cols; c += kPartCols) parts.push_back({&product, t, c, bytes});
    }
  }
  if (parts.empty()) return;
  if (input_tiles_.size() < bytes) input_tiles_ = Buffer(bytes);
  pool_.parallel_for(parts.size(), 1, [&](size_t begin, size_t end) {
    for (const Part& part : std::span(parts).subspan(begin, end - begin)) {
      const Product& product = *part.product;
      kernels_.inputs[size_t(product.weight.dtype)].pack(
          {.rows = product.in + part.token * product.in_stride,
           .stride_bytes = product.in_stride,
           .tokens = std::min(kInputTileTokens, product.tokens - part.token),
           .cols = product.weight.cols,
           .col_begin = part.col,
           .col_end = std::min(part.col + kPartCols, product.weight.cols),
           .tile = input_tiles_.data() + part.at});
    }
  });
  for (size_t i = 0; i < products.size(); ++i) {
    if (places[i] != SIZE_MAX) products[i].in_tiles = input_tiles_.data() + places[i];
  }
}

void CpuBackend::run(std::span<Product> products) {
  pack_inputs(products);
  const std::vector<ProductBlock> blocks = blocks_of(products);
  outliers_.clear();
  pool_.parallel_for(blocks.size(), 1, [&](size_t first, size_t last) {
    for (size_t i = first; i < last; ++i) multiply(blocks[i]);
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
  const Activation& out = params.out;
  if (params.span > 1) {
    CHECK(params.up && params.gate.width * params.span == out.f32.width);
    pool_.parallel_for(out.f32.rows, 1, [&](size_t begin, size_t end) {
      for (size_t row = begin; row < end; ++row) {
        float* gate = params.gate.row(row);
        kernels_.activate(params.function, gate, nullptr, gate, params.gate.width);
        for (size_t i = 0; i < out.f32.width; ++i)
          out.f32.row(row)[i] = params.up.row(row)[i] * gate[i / params.span];
        quantize(out, row);
      }
    });
    return;
  }
  // A few rows are divided, or most threads would wait.
  const size_t width = out.f32.width, part = out.f32.rows < pool_.size() ? kPartCols : width;
  const size_t parts = (width + part - 1) / part;
  pool_.parallel_for(out.f32.rows * parts, 1, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      const size_t row = i / parts, col = i % parts * part, count = std::min(part, width - col);
      kernels_.activate(params.function, params.gate.row(row) + col,
                        params.up ? params.up.row(row) + col : nullptr, out.f32.row(row) + col, count);
      quantize_part(out, row, col, count);
    }
  });
}

void CpuBackend::logits(const LogitsParams& params) {
  if (params.in.f32.rows == 0) return;
  Product head = product(params.in, params.head, params.bias, params.out);
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
