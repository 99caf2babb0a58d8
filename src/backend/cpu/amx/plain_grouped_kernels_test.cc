// Compiled for AVX-512 with VNNI, so nothing here may be inlined elsewhere, and no header with functions of its own is included.
#if defined(__x86_64__)

#include "backend/cpu/amx/plain_grouped_kernels.h"

#include "backend/cpu/amx/grouped_product.h"

namespace quire {
namespace {

void check(bool is_right) {
  if (!is_right) __builtin_trap();
}

// Eight tiles that hold what AMX would, and refuse what it would refuse.
struct PlainTiles {
  static inline thread_local int8_t tiles[8][16][64];
  static inline thread_local bool is_configured = false;

  static void configure() {
    check(!is_configured);
    is_configured = true;
  }
  static void release() {
    check(is_configured);
    is_configured = false;
  }
  template <size_t kTile>
  static void zero() {
    check(is_configured);
    __builtin_memset(tiles[kTile], 0, sizeof(tiles[kTile]));
  }
  template <size_t kTile>
  static void load(const void* rows, size_t stride_bytes) {
    check(is_configured);
    for (size_t r = 0; r < 16; ++r)
      __builtin_memcpy(tiles[kTile][r], static_cast<const int8_t*>(rows) + r * stride_bytes, 64);
  }
  template <size_t kTile>
  static void store(void* rows, size_t stride_bytes) {
    check(is_configured);
    for (size_t r = 0; r < 16; ++r)
      __builtin_memcpy(static_cast<int8_t*>(rows) + r * stride_bytes, tiles[kTile][r], 64);
  }
  template <size_t kSums, size_t kWeights, size_t kInputs>
  static void multiply() {
    check(is_configured);
    for (size_t m = 0; m < 16; ++m) {
      for (size_t n = 0; n < 16; ++n) {
        int32_t sum;
        __builtin_memcpy(&sum, tiles[kSums][m] + 4 * n, sizeof(sum));
        for (size_t k = 0; k < 64; ++k)
          sum += int32_t(tiles[kWeights][m][k]) * int32_t(tiles[kInputs][k / 4][4 * n + k % 4]);
        __builtin_memcpy(tiles[kSums][m] + 4 * n, &sum, sizeof(sum));
      }
    }
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
constexpr GroupedKernels kKernels = GroupedProduct<PlainTiles, Format, group_values(kForm)>::kernels();

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
  return PlainTiles::is_configured;
}

}  // namespace quire

#endif
