// The matrix products of a 1.2 B llama by all threads, through the backend: tokens per second if there were nothing else, by weight
// type and number of tokens that are computed together.
//
//   product_bench                            every kernel set; q4_0, q8_0, q4_k, q6_k and bf16; 1, 8, 32 and 512 tokens
//   product_bench amx_grouped q4_0 1 32      this set, this type (or several, with commas; "all"), and these tokens
//
// For up to 32 tokens the logits of all are computed, for more those of one.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/kernel_choice.h"
#include "backend/cpu/yardstick.h"
#include "tensor/buffer.h"
#include "tensor/quantize.h"

namespace quire {
namespace {

struct Shape {
  size_t rows, cols, count;
};
constexpr Shape kShapes[] = {{3072, 2048, 16}, {2048, 2048, 16}, {16384, 2048, 16}, {2048, 8192, 16}};
constexpr Shape kHead = {128256, 2048, 1};
constexpr size_t kManyTokens = 32;  // above, one token has logits

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Nearly gaussian numbers.
class Random {
 public:
  float next() {
    float sum = 0;
    for (int i = 0; i < 4; ++i) {
      state_ ^= state_ << 13, state_ ^= state_ >> 7, state_ ^= state_ << 17;
      sum += float(state_ >> 40) * 0x1p-24f - 0.5f;
    }
    return sum * 1.7f;
  }

 private:
  uint64_t state_ = 88172645463325252u;
};

// Matrices of one shape, each with panels of its own, so that none stays in a cache.
struct Matrices {
  Shape shape;
  std::shared_ptr<Buffer> file;
  std::vector<Weight> weights;

  Matrices(const Shape& shape, DType dtype, CpuBackend& backend)
      : shape(shape), file(std::make_shared<Buffer>(shape.rows * row_bytes(dtype, shape.cols))) {
    const size_t bytes = row_bytes(dtype, shape.cols);
    std::vector<float> values(shape.cols);
    Random random;
    for (float& value : values) value = random.next();
    if (is_writable(dtype)) quantize_row(dtype, values, file->data());  // else zeros, which take as long
    for (size_t r = 1; r < shape.rows; ++r) std::copy_n(file->data(), bytes, file->data() + r * bytes);
    Weight weight;
    weight.view = {file->data(), dtype, shape.rows, shape.cols};
    for (size_t i = 0; i < shape.count; ++i) weights.push_back(backend.prepare(weight, {WeightUse::product}));
  }
};

// The input of the down projection is a gated product, and so has outliers.
class Activations {
 public:
  Activations(size_t cols, size_t tokens, DType dtype, const CpuBackend& backend, const CpuKernels& kernels)
      : values_(cols * tokens) {
    Random random;
    for (float& value : values_) {
      value = random.next();
      if (cols == kShapes[3].cols) value *= random.next() / (1 + std::exp(-value));
    }
    const ActivationForm form = backend.form_for(dtype);
    activation_.f32 = {values_.data(), tokens, cols, cols};
    if (form == ActivationForm::f32) return;
    const size_t stride = backend.activation_bytes(form, cols);
    rows_ = Buffer(stride * tokens);
    activation_.forms |= form;
    activation_.data[size_t(form)] = rows_.data();
    activation_.stride[size_t(form)] = stride;
    for (size_t t = 0; t < tokens; ++t)
      kernels.quantize_activation[size_t(form)](values_.data() + t * cols, cols, rows_.data() + t * stride);
  }
  const Activation& get() const { return activation_; }

 private:
  std::vector<float> values_;
  Buffer rows_;
  Activation activation_;
};

void measure(const CpuKernels& kernels, DType dtype, const std::vector<size_t>& token_counts,
             uint32_t threads) {
  CpuBackend backend(kernels, threads);
  std::vector<Matrices> layers;
  double weights = 0, bytes = 0;
  for (const Shape& shape : kShapes) {
    layers.emplace_back(shape, dtype, backend);
    weights += double(shape.rows * shape.cols * shape.count);
  }
  const Matrices head(kHead, dtype, backend);
  const PanelFormat& format = kernels.panels[size_t(dtype)];
  for (const Shape& shape : {kShapes[0], kShapes[1], kShapes[2], kShapes[3], kHead}) {
    const size_t row =
        format.pack != nullptr ? format.panel_bytes(shape.cols) / kPanelRows : row_bytes(dtype, shape.cols);
    bytes += double(row * shape.rows * shape.count);
  }
  for (size_t tokens : token_counts) {
    const size_t heads = tokens > kManyTokens ? 1 : tokens;
    const Activations narrow(2048, tokens, dtype, backend, kernels),
        wide(8192, tokens, dtype, backend, kernels);
    std::vector<float> out(std::max(tokens * 16384, heads * kHead.rows));
    const auto multiply = [&](const Activation& in, const Weight& weight) {
      const size_t rows = weight.view.rows;
      const Projection projection{.weight = weight, .bias = {}, .out = {out.data(), in.f32.rows, rows, rows}};
      backend.project({.in = in, .projections = {&projection, 1}});
    };
    double best = 1e9, by_shape[5] = {1e9, 1e9, 1e9, 1e9, 1e9};
    std::vector<double> all;
    const auto start = std::chrono::steady_clock::now();
    for (int round = 0; round < 9 && (round < 3 || seconds_since(start) < 2.5); ++round) {
      double total = 0;
      for (size_t s = 0; s < 4; ++s) {
        const auto begin = std::chrono::steady_clock::now();
        for (const Weight& weight : layers[s].weights)
          multiply(layers[s].shape.cols == 2048 ? narrow.get() : wide.get(), weight);
        const double passed = seconds_since(begin);
        by_shape[s] = std::min(by_shape[s], passed);
        total += passed;
      }
      const auto begin = std::chrono::steady_clock::now();
      multiply(narrow.get().first(heads), head.weights[0]);
      const double passed = seconds_since(begin);
      by_shape[4] = std::min(by_shape[4], passed);
      all.push_back(total + passed);
      best = std::min(best, total + passed);
    }
    std::sort(all.begin(), all.end());
    const double median = all[all.size() / 2];
    const double ops = 2 * (weights * double(tokens) + double(kHead.rows * kHead.cols * heads));
    std::printf("%-11s %-6s %4zu tokens: median %7.0f best %7.0f tok/s %6.2f TOPS %6.1f GB/s; ms",
                kernels.name, traits(dtype).name.data(), tokens, double(tokens) / median,
                double(tokens) / best, ops / median / 1e12, bytes / median / 1e9);
    for (double seconds : by_shape) std::printf(" %.2f", seconds * 1e3);
    std::printf("\n");
    std::fflush(stdout);
  }
}

bool is_wanted(const std::string& list, const std::string& name) {
  return list == "all" || ("," + list + ",").find("," + name + ",") != std::string::npos;
}

}  // namespace
}  // namespace quire

int main(int count, char** arguments) {
  using namespace quire;
  const std::string sets = count > 1 ? arguments[1] : "all";
  const std::string types = count > 2 ? arguments[2] : "q4_0,q8_0,q4_k,q6_k,bf16";
  std::vector<size_t> tokens;
  for (int i = 3; i < count; ++i) tokens.push_back(std::max(1ul, std::strtoul(arguments[i], nullptr, 10)));
  if (tokens.empty()) tokens = {1, 8, 32, 512};
  const uint32_t threads = std::max(1u, std::thread::hardware_concurrency());
  for (size_t i = 0; i < kDTypeCount; ++i) {
    if (DType(i) == DType::i32 || !is_wanted(types, std::string(traits(DType(i)).name))) continue;
    {
      const MachineRates rates = CpuYardstick(threads, {.seconds = 0.3, .buffer_bytes = 0}).measure();
      std::printf("-- %u threads: read %.0f GB/s (%s), int8 %.1f TOPS (%s), bf16 %.1f TFLOPS\n", threads,
                  rates.read_gb_s, rates.read_method.c_str(), rates.int8_gops / 1e3,
                  rates.int8_instruction.c_str(), rates.bf16_gflops / 1e3);
      std::fflush(stdout);
    }
    for (const CpuKernels& kernels : present_kernels()) {
      if (is_wanted(sets, kernels.name)) measure(kernels, DType(i), tokens, threads);
    }
  }
}
