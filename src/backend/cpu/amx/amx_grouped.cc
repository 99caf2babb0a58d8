// Grouped weights by `tdpbssd`, which multiplies a tile of weights with a tile of tokens over 64 columns, and for one token by
// `vpdpbusd`. Weights of four bits are opened by `vpermb`.
//
// Compiled for AVX-512 with VNNI and VBMI, so nothing here may be inlined elsewhere.
#if defined(__x86_64__)

#include "backend/cpu/amx/amx_kernels.h"
#include "backend/cpu/amx/grouped_product.h"
#include "backend/cpu/amx/tile_instructions.h"

namespace quire {
namespace {

struct Amx : TileInstructions {
  static void configure() {
    TileConfig config;
    for (size_t tile = 0; tile < 8; ++tile) config.set(tile, 16, 64);
    config.load();
  }
  template <size_t kSums, size_t kWeights, size_t kInputs>
  static ALWAYS_INLINE void multiply() {
    asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSums), "i"(kWeights), "i"(kInputs));
  }
  static ALWAYS_INLINE __m512i permute_bytes(__m512i table, __m512i places) {
    return _mm512_permutexvar_epi8(places, table);
  }
};

// Types that are bytes in memory have the same kernels.
template <class Format>
using Kernel = std::conditional_t<kGroupedCoding<Format> == GroupedCoding::byte, format::Q8_0, Format>;

template <class Format, ActivationForm kForm>
constexpr GroupedKernels kKernels = GroupedProduct<Amx, Kernel<Format>, group_values(kForm)>::kernels();

template <class Format, ActivationForm kForm>
void matmul(const MatmulArgs& args) {
  multiply_grouped(args, kKernels<Format, kForm>);
}

}  // namespace

void use_amx_grouped(CpuKernels& kernels) {
  kernels.twin = grouped_kernels;
  kernels.streamed_tokens = kGroupedStreamTiles * kGroupedTileTokens;
#define QUIRE_FORMAT(dtype, Format, activation)                                              \
  kernels.form[size_t(DType::dtype)] = ActivationForm::activation;                           \
  kernels.matmul[size_t(DType::dtype)] = matmul<format::Format, ActivationForm::activation>; \
  kernels.panels[size_t(DType::dtype)] =                                                     \
      grouped_panel_format<format::Format, group_values(ActivationForm::activation)>();      \
  kernels.inputs[size_t(DType::dtype)] = kKernels<format::Format, ActivationForm::activation>.inputs;
#include "backend/cpu/matmul/grouped_formats.inc"
#undef QUIRE_FORMAT
}

}  // namespace quire

#endif
