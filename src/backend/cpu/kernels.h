#pragma once
#include "backend/activation.h"
namespace quire {
struct MatmulArgs {
  MatrixView weight;
  const std::byte* input;
  size_t input_stride_bytes;
  size_t tokens;
  size_t row_begin, row_end;
  float* out;
  size_t out_stride;
};
struct CpuKernels {
  const char* name;
  ActivationForm form[kDTypeCount];
  void (*quantize_activation[3])(const float*, size_t n, std::byte*);
  void (*matmul[kDTypeCount])(const MatmulArgs&);
};
size_t activation_row_bytes(ActivationForm form, size_t n);
CpuKernels exact_kernels();
CpuKernels scalar_kernels();
}  // namespace quire
