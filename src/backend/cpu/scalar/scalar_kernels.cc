#include <algorithm>

#include "backend/cpu/scalar/matmul.h"
#include "base/check.h"
#include "tensor/block_formats.h"

namespace quire {

size_t activation_row_bytes(ActivationForm form, size_t n) {
  size_t bytes = 0;
  switch (form) {
    case ActivationForm::f32:
      bytes = n * sizeof(float);
      break;
    case ActivationForm::q8_32:
      CHECK(n % 32 == 0);
      bytes = n + n / 32 * (sizeof(float) + sizeof(int16_t));
      break;
    case ActivationForm::q8_256:
      CHECK(n % 256 == 0);
      bytes = n + n / 256 * sizeof(float) + n / 16 * sizeof(int16_t);
      break;
  }
  return (bytes + 63) / 64 * 64;
}

CpuKernels exact_kernels() {
  CpuKernels kernels = {};
  kernels.name = "exact";
  std::fill_n(kernels.form, kDTypeCount, ActivationForm::f32);
  std::fill_n(kernels.matmul, kDTypeCount, scalar::matmul_f32);
  kernels.matmul[size_t(DType::i32)] = nullptr;
  kernels.quantize_activation[size_t(ActivationForm::f32)] = scalar::copy_f32;
  kernels.quantize_activation[size_t(ActivationForm::q8_32)] = scalar::quantize_q8_32;
  kernels.quantize_activation[size_t(ActivationForm::q8_256)] = scalar::quantize_q8_256;
  return kernels;
}

CpuKernels scalar_kernels() {
  CpuKernels kernels = exact_kernels();
  kernels.name = "scalar";
  const auto use = [&](DType dtype, ActivationForm form, void (*matmul)(const MatmulArgs&)) {
    kernels.form[size_t(dtype)] = form;
    kernels.matmul[size_t(dtype)] = matmul;
  };
  use(DType::q4_0, ActivationForm::q8_32, scalar::matmul_q8_32<format::Q4_0>);
  use(DType::q4_1, ActivationForm::q8_32, scalar::matmul_q8_32<format::Q4_1>);
  use(DType::q5_0, ActivationForm::q8_32, scalar::matmul_q8_32<format::Q5_0>);
  use(DType::q5_1, ActivationForm::q8_32, scalar::matmul_q8_32<format::Q5_1>);
  use(DType::q8_0, ActivationForm::q8_32, scalar::matmul_q8_32<format::Q8_0>);
  use(DType::iq4_nl, ActivationForm::q8_32, scalar::matmul_q8_32<format::Iq4Nl>);
  use(DType::mxfp4, ActivationForm::q8_32, scalar::matmul_q8_32<format::Mxfp4>);
  use(DType::q2_k, ActivationForm::q8_256, scalar::matmul_q8_256<format::Q2_K>);
  use(DType::q3_k, ActivationForm::q8_256, scalar::matmul_q8_256<format::Q3_K>);
  use(DType::q4_k, ActivationForm::q8_256, scalar::matmul_q8_256<format::Q4_K>);
  use(DType::q5_k, ActivationForm::q8_256, scalar::matmul_q8_256<format::Q5_K>);
  use(DType::q6_k, ActivationForm::q8_256, scalar::matmul_q8_256<format::Q6_K>);
  use(DType::iq4_xs, ActivationForm::q8_256, scalar::matmul_q8_256<format::Iq4Xs>);
  return kernels;
}

}  // namespace quire
