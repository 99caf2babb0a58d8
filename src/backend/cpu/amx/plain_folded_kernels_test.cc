// Compiled for AVX-512 with VNNI, so nothing here may be inlined elsewhere.
#if defined(__x86_64__)

#include "backend/cpu/amx/plain_folded_kernels.h"

#include "backend/cpu/amx/folded_product.h"
#include "backend/cpu/amx/plain_tiles.h"
#include "backend/cpu/avx512/avx512_kernels.h"

namespace quire {
namespace {

struct Plain : PlainTiles {
  template <size_t kSums, size_t kInputs, size_t kCodes>
  static void multiply_signed() {
    add_products<kSums, kInputs, kCodes, int8_t>();
  }
  template <size_t kSums, size_t kInputs, size_t kCodes>
  static void multiply_unsigned() {
    add_products<kSums, kInputs, kCodes, uint8_t>();
  }
};

template <class Format>
void matmul(const MatmulArgs& args) {
  if (args.tokens < kFoldedLeastTokens) return matmul_vnni<Format, ActivationForm::q8_256>(args);
  static constexpr FoldedKernels kKernels = FoldedProduct<Plain, Format>::kernels();
  multiply_folded(args, kKernels);
}

template <class Format>
void use_folded(CpuKernels& kernels, DType dtype) {
  kernels.matmul[size_t(dtype)] = matmul<Format>;
  kernels.inputs[size_t(dtype)] = FoldedInputs<Plain>::kFormat;
}

}  // namespace

void use_plain_folded(CpuKernels& kernels) {
  use_avx512(kernels);  // few tokens
  kernels.name = "plain tiles";
  use_folded<format::Q2_K>(kernels, DType::q2_k);
  use_folded<format::Q3_K>(kernels, DType::q3_k);
  use_folded<format::Q4_K>(kernels, DType::q4_k);
  use_folded<format::Q5_K>(kernels, DType::q5_k);
  use_folded<format::Q6_K>(kernels, DType::q6_k);
  use_folded<format::Iq4Xs>(kernels, DType::iq4_xs);
}

bool plain_folded_tiles_are_configured() {
  return Plain::is_configured;
}

}  // namespace quire

#endif
