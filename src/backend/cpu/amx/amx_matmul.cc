// Products of types in blocks of 256, which are not grouped (grouped_weights.h), by `tdpbsud` and `tdpbssd`, which multiply a tile of tokens
// with a tile of codes over 64 columns.
//
// Compiled for AVX-512 with VNNI, so nothing here may be inlined elsewhere.
#if defined(__x86_64__)

#include "backend/cpu/amx/amx_kernels.h"
#include "backend/cpu/amx/folded_product.h"
#include "backend/cpu/amx/tile_instructions.h"
#include "backend/cpu/avx512/avx512_kernels.h"

namespace quire {
namespace {

struct Amx : TileInstructions {
  static void configure() {
    TileConfig config;
    for (size_t tile = 0; tile < 8; ++tile) config.set(tile, 16, 64);
    config.load();
  }
  template <size_t kSums, size_t kInputs, size_t kCodes>
  static ALWAYS_INLINE void multiply_signed() {
    asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSums), "i"(kInputs), "i"(kCodes));
  }
  template <size_t kSums, size_t kInputs, size_t kCodes>
  static ALWAYS_INLINE void multiply_unsigned() {
    asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSums), "i"(kInputs), "i"(kCodes));
  }
};

template <class Format>
void matmul(const MatmulArgs& args) {
  if (args.tokens < kFoldedLeastTokens) return matmul_vnni<Format, ActivationForm::q8_256>(args);
  static constexpr FoldedKernels kKernels = FoldedProduct<Amx, Format>::kernels();
  multiply_folded(args, kKernels);
}

template <class Format>
void use_folded(CpuKernels& kernels, DType dtype) {
  kernels.matmul[size_t(dtype)] = matmul<Format>;
  kernels.inputs[size_t(dtype)] = FoldedInputs<Amx>::kFormat;
}

}  // namespace

void use_amx(CpuKernels& kernels) {
  kernels.name = "amx_grouped";
  use_folded<format::Q2_K>(kernels, DType::q2_k);
  use_folded<format::Q3_K>(kernels, DType::q3_k);
  use_folded<format::Q4_K>(kernels, DType::q4_k);
  use_folded<format::Q5_K>(kernels, DType::q5_k);
  use_folded<format::Q6_K>(kernels, DType::q6_k);
  use_folded<format::Iq4Xs>(kernels, DType::iq4_xs);
  use_amx_grouped(kernels);
}

}  // namespace quire

#endif
