#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "backend/activation.h"
#include "tensor/tensor_view.h"

namespace quire {

// A quantized activation row of n values, as the matrix kernels read it. In q8_32, 32 values share a scale
// and a sum; in q8_256, 256 values share a scale and 16 a sum. In memory, one after the other:
//
//   int8_t values[n];          in -127..127; the activation is about scale * value
//   float scales[n / group];
//   int16_t sums[n / summed];  of the int8 values: what a weight's offset or minimum is multiplied with
//
// A group that holds NaN or infinity gets the scale NaN, so that the product shows it.
template <class Byte>
struct Q8RowView {
  static constexpr bool kConst = std::is_const_v<Byte>;
  template <class T>
  using Pointer = std::conditional_t<kConst, const T*, T*>;

  Pointer<int8_t> values;
  Pointer<float> scales;
  Pointer<int16_t> sums;

  // REQUIRES: n is a multiple of group; the row is aligned to 4 bytes.
  Q8RowView(Byte* row, size_t n, size_t group)
      : values(reinterpret_cast<Pointer<int8_t>>(row)),
        scales(reinterpret_cast<Pointer<float>>(row + n)),
        sums(reinterpret_cast<Pointer<int16_t>>(row + n + n / group * sizeof(float))) {}
};
using Q8Row = Q8RowView<const std::byte>;
using MutableQ8Row = Q8RowView<std::byte>;

// Bytes of a row of n values in `form`, rounded up to 64. REQUIRES: n is a multiple of the form's group.
size_t activation_row_bytes(ActivationForm form, size_t n);

// out[t * out_stride + r] = the product of weight row r and input row t, for r in [row_begin, row_end) and
// all tokens. An element is computed by the same operations in the same order whatever the tokens and rows
// beside it.
struct MatmulArgs {
  MatrixView weight;
  const std::byte* input;  // rows in the form of the weight's type, aligned to 4 bytes
  size_t input_stride_bytes;
  size_t tokens;
  size_t row_begin, row_end;
  float* out;
  size_t out_stride;
};

// The kernels of one instruction set, by weight type. i32 has none.
struct CpuKernels {
  const char* name;
  ActivationForm form[kDTypeCount];
  void (*quantize_activation[kActivationFormCount])(const float* values, size_t n, std::byte* row);
  void (*matmul[kDTypeCount])(const MatmulArgs& args);
};

// Dequantized weights, f32 activations: what goldens compare with.
CpuKernels exact_kernels();

// The scalar twin: the quantized activations and the order of operations that fast kernels share.
CpuKernels scalar_kernels();

}  // namespace quire
