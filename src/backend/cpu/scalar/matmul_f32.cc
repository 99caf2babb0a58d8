#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <vector>

#include "backend/cpu/scalar/matmul.h"
#include "tensor/float16.h"
#include "tensor/lanes.h"
#include "tensor/quantize.h"

#define ALWAYS_INLINE inline __attribute__((always_inline))

namespace quire::scalar {
namespace {

constexpr size_t kLanes = 16;
constexpr size_t kPanelBytes = 128 * 1024;  // of dequantized rows: a share of the second-level cache
constexpr size_t kTokens = 2;

ALWAYS_INLINE F32x4 fma4(F32x4 a, F32x4 b, F32x4 sum) {
  return F32x4{std::fma(a[0], b[0], sum[0]), std::fma(a[1], b[1], sum[1]), std::fma(a[2], b[2], sum[2]),
               std::fma(a[3], b[3], sum[3])};
}

struct Sums {
  F32x4 lanes[kLanes / 4] = {};

  ALWAYS_INLINE void add_products(const std::byte* weight, const std::byte* input) {
    for (size_t k = 0; k < kLanes / 4; ++k) {
      lanes[k] = fma4(load4(weight + 16 * k), load4(input + 16 * k), lanes[k]);
    }
  }
  ALWAYS_INLINE float total() const { return sum4((lanes[0] + lanes[2]) + (lanes[1] + lanes[3])); }
};

// The products of one weight row with kTokens inputs: the weight is loaded once for all of them. Rows may
// have any alignment.
template <size_t kTokens>
ALWAYS_INLINE void dot_tokens(const std::byte* weight, size_t count, const std::byte* input, size_t stride,
                              float* out, size_t out_stride) {
  Sums sums[kTokens];
  const size_t whole = count / kLanes * kLanes;
  for (size_t i = 0; i < whole; i += kLanes) {
    for (size_t t = 0; t < kTokens; ++t) sums[t].add_products(weight + 4 * i, input + t * stride + 4 * i);
  }
  if (whole < count) {
    for (size_t t = 0; t < kTokens; ++t) {  // zeros in the other lanes leave their sums as they are
      float rest[2][kLanes] = {};
      std::memcpy(rest[0], weight + 4 * whole, 4 * (count - whole));
      std::memcpy(rest[1], input + t * stride + 4 * whole, 4 * (count - whole));
      sums[t].add_products(reinterpret_cast<std::byte*>(rest[0]), reinterpret_cast<std::byte*>(rest[1]));
    }
  }
  for (size_t t = 0; t < kTokens; ++t) out[t * out_stride] = sums[t].total();
}

// A weight row that is f32 now, with all tokens from `t` on that are worked on together.
ALWAYS_INLINE void dot_row(const MatmulArgs& args, const std::byte* row, size_t r, size_t t) {
  const std::byte* input = args.input + t * args.input_stride_bytes;
  float* out = args.out + t * args.out_stride + r;
  if (t + kTokens <= args.tokens) {
    dot_tokens<kTokens>(row, args.weight.cols, input, args.input_stride_bytes, out, args.out_stride);
  } else {
    dot_tokens<1>(row, args.weight.cols, input, args.input_stride_bytes, out, args.out_stride);
  }
}

using DotRow = void (*)(const MatmulArgs& args, const std::byte* row, size_t r, size_t t);

void dot_row_portable(const MatmulArgs& args, const std::byte* row, size_t r, size_t t) {
  dot_row(args, row, r, t);
}

#if defined(__x86_64__)
// The same where std::fma is an instruction, not a call.
__attribute__((target("avx2,fma"))) void dot_row_fma(const MatmulArgs& args, const std::byte* row, size_t r,
                                                     size_t t) {
  dot_row(args, row, r, t);
}

DotRow choose_dot_row() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? dot_row_fma : dot_row_portable;
}
#else
DotRow choose_dot_row() {
  return dot_row_portable;
}
#endif

// Rows [row_begin, row_end) as f32, in memory that the thread keeps.
std::span<const float> dequantize_panel(const MatrixView& weight, size_t row_begin, size_t row_end) {
  thread_local std::vector<float> panel;
  panel.resize((row_end - row_begin) * weight.cols);
  for (size_t r = row_begin; r < row_end; ++r) {
    dequantize_row(weight.dtype, weight.row(r),
                   std::span(panel).subspan((r - row_begin) * weight.cols, weight.cols));
  }
  return panel;
}

}  // namespace

void matmul_f32(const MatmulArgs& args) {
  static const DotRow dot = choose_dot_row();
  const size_t row_bytes = args.weight.cols * sizeof(float);
  const size_t panel_rows = std::max<size_t>(1, kPanelBytes / row_bytes);
  for (size_t begin = args.row_begin; begin < args.row_end; begin += panel_rows) {
    const size_t end = std::min(begin + panel_rows, args.row_end);
    const std::byte* rows = args.weight.dtype == DType::f32
                                ? args.weight.row(begin)
                                : std::as_bytes(dequantize_panel(args.weight, begin, end)).data();
    for (size_t t = 0; t < args.tokens; t += kTokens) {
      for (size_t r = begin; r < end; ++r) dot(args, rows + (r - begin) * row_bytes, r, t);
    }
  }
}

void matmul_bf16(const MatmulArgs& args) {
  const size_t cols = args.weight.cols;
  thread_local std::vector<float> inputs;
  inputs.resize(args.tokens * cols);
  for (size_t t = 0; t < args.tokens; ++t) {
    const uint16_t* row = reinterpret_cast<const uint16_t*>(args.input + t * args.input_stride_bytes);
    std::transform(row, row + cols, inputs.data() + t * cols, bf16_to_f32);
  }
  MatmulArgs widened = args;
  widened.input = reinterpret_cast<const std::byte*>(inputs.data());
  widened.input_stride_bytes = cols * sizeof(float);
  matmul_f32(widened);
}

}  // namespace quire::scalar
