// Compiled for AVX-512 with VNNI, so nothing here may be inlined elsewhere, and no header with functions of its own is included.
#if defined(__x86_64__)

#include "backend/cpu/amx/plain_grouped_kernels.h"

#include "backend/cpu/amx/grouped_product.h"
#include "backend/cpu/amx/plain_tiles.h"

namespace quire {
namespace {

struct Plain : PlainTiles {
  template <size_t kSums, size_t kWeights, size_t kInputs>
  static void multiply() {
    add_products<kSums, kWeights, kInputs, int8_t>();
  }
  static __m512i permute_bytes(__m512i table, __m512i places) {
    alignas(64) uint8_t bytes[64], at[64], out[64];
    _mm512_store_si512(bytes, table);
    _mm512_store_si512(at, places);
    for (size_t i = 0; i < 64; ++i) out[i] = bytes[at[i] & 63];
    return _mm512_load_si512(out);
  }
};

template <class Format, ActivationForm kForm>
constexpr GroupedKernels kKernels = GroupedProduct<Plain, Format, group_values(kForm)>::kernels();

template <class Format, ActivationForm kForm>
void matmul(const MatmulArgs& args) {
  multiply_grouped(args, kKernels<Format, kForm>);
}

}  // namespace

void use_plain_grouped(CpuKernels& kernels) {
  kernels.name = "plain tiles";
  kernels.twin = grouped_kernels;
#define QUIRE_FORMAT(dtype, Format, activation)                                              \
  kernels.form[size_t(DType::dtype)] = ActivationForm::activation;                           \
  kernels.matmul[size_t(DType::dtype)] = matmul<format::Format, ActivationForm::activation>; \
  kernels.panels[size_t(DType::dtype)] =                                                     \
      grouped_panel_format<format::Format, group_values(ActivationForm::activation)>();      \
  kernels.inputs[size_t(DType::dtype)] = kKernels<format::Format, ActivationForm::activation>.inputs;
#include "backend/cpu/matmul/grouped_formats.inc"
#undef QUIRE_FORMAT
}

bool plain_grouped_tiles_are_configured() {
  return Plain::is_configured;
}

}  // namespace quire

#endif
