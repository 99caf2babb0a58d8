#include <algorithm>

#include "backend/cpu/nonlinearity.h"
#include "backend/cpu/scalar/matmul.h"
#include "base/check.h"
#include "tensor/block_formats.h"

namespace quire {

size_t activation_row_bytes(ActivationForm form, size_t n) {
  if (form == ActivationForm::bf16) return ((n * sizeof(uint16_t) + 63) / 64 | 1) * 64;
  size_t bytes = n * sizeof(float);
  if (form != ActivationForm::f32) {
    CHECK(n % 32 == 0);
    const size_t group = group_values(form);
    bytes = n + ((n + group - 1) / group + n / 32) * sizeof(float) +
            (n / 16 + (n / 32 + 1) / 2 * 2) * sizeof(int16_t) +
            outlier_spans(n) * (sizeof(uint32_t) + most_outliers(group) * sizeof(Outlier));
    return ((bytes + 63) / 64 + 3) / 8 * 512 + 256;
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
  kernels.quantize_activation[size_t(ActivationForm::bf16)] = scalar::round_to_bf16;
  kernels.quantize_activation[size_t(ActivationForm::q8_64)] = scalar::quantize_q8<ActivationForm::q8_64>;
  kernels.quantize_activation[size_t(ActivationForm::q8_128)] = scalar::quantize_q8<ActivationForm::q8_128>;
  kernels.quantize_activation[size_t(ActivationForm::q8_256)] = scalar::quantize_q8<ActivationForm::q8_256>;
  kernels.attend = attend_exact;
  kernels.activate = activate_row;
  scalar::use_recurrences(kernels);
  kernels.to_f16 = scalar::to_f16;
  kernels.streamed_tokens = 4;
  kernels.twin = exact_kernels;
  return kernels;
}

CpuKernels scalar_kernels() {
  CpuKernels kernels = exact_kernels();
  kernels.name = "scalar";
  kernels.twin = scalar_kernels;
  kernels.attend = attend_baseline;
  kernels.form[size_t(DType::bf16)] = ActivationForm::bf16;
  kernels.matmul[size_t(DType::bf16)] = scalar::matmul_bf16;
#define QUIRE_FORMAT(dtype, Format, activation)                    \
  kernels.form[size_t(DType::dtype)] = ActivationForm::activation; \
  kernels.matmul[size_t(DType::dtype)] = scalar::matmul_q8<format::Format, ActivationForm::activation>;
#include "backend/cpu/matmul/book_formats.inc"
#include "backend/cpu/matmul/quantized_formats.inc"
#undef QUIRE_FORMAT
  return kernels;
}

CpuKernels grouped_kernels() {
  CpuKernels kernels = scalar_kernels();
  kernels.name = "grouped";
  kernels.twin = grouped_kernels;
#define QUIRE_FORMAT(dtype, Format, activation)                    \
  kernels.form[size_t(DType::dtype)] = ActivationForm::activation; \
  kernels.matmul[size_t(DType::dtype)] = scalar::matmul_grouped<format::Format, ActivationForm::activation>;
#include "backend/cpu/matmul/grouped_formats.inc"
#undef QUIRE_FORMAT
  return kernels;
}

}  // namespace quire
