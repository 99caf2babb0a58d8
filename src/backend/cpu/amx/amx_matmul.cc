// Matrix products by `tdpbssd`, which multiplies a tile of tokens with a tile of codes over up to 64 columns: four of
// the codes' rows are a row of an opened panel. What it leaves is scaled by AVX-512.
//
// Compiled for AVX-512 with VNNI, so nothing here may be inlined elsewhere. The tile instructions are written out: the
// compilers' own functions want the number of a tile as a literal.
#if defined(__x86_64__)

#include <immintrin.h>

#include "backend/cpu/amx/amx_kernels.h"
#include "backend/cpu/amx/tile_product.h"
#include "backend/cpu/avx512/avx512_kernels.h"
#include "backend/cpu/avx512/panel_reader.h"

namespace quire {
namespace {

// What `ldtilecfg` reads.
struct alignas(64) TileConfig {
  uint8_t palette;
  uint8_t start_row;
  uint8_t reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};
static_assert(sizeof(TileConfig) == 64);

struct Amx {
  template <size_t kSub>
  static void configure(size_t tokens) {
    TileConfig config = {.palette = 1, .start_row = 0, .reserved = {}, .row_bytes = {}, .rows = {}};
    for (size_t tile = 0; tile < 8; ++tile) {
      const TileShape shape = tile_shape(tile, tokens, kSub);
      config.row_bytes[tile] = uint16_t(shape.row_bytes);
      config.rows[tile] = uint8_t(shape.rows);
    }
    asm volatile("ldtilecfg %0" : : "m"(config));
  }
  static void release() { asm volatile("tilerelease" : : : "memory"); }

  template <size_t kTile>
  static ALWAYS_INLINE void zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
  }
  // All of memory is named because rows lie apart.
  template <size_t kTile>
  static ALWAYS_INLINE void load(const void* rows, size_t stride_bytes) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(rows), "r"(stride_bytes), "i"(kTile) : "memory");
  }
  template <size_t kTile>
  static ALWAYS_INLINE void store(void* rows, size_t stride_bytes) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(rows), "r"(stride_bytes), "i"(kTile) : "memory");
  }
  template <size_t kSums, size_t kInputs, size_t kCodes>
  static ALWAYS_INLINE void multiply() {
    asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSums), "i"(kInputs), "i"(kCodes));
  }

  struct Lanes {
    __m512 v;

    static ALWAYS_INLINE Lanes load(const float* values) { return {_mm512_loadu_ps(values)}; }
    static ALWAYS_INLINE Lanes load_moved(const int32_t* sums) {
      const __m512i moved = _mm512_add_epi32(_mm512_loadu_si512(sums), _mm512_set1_epi32(kMagicBits));
      return {_mm512_castsi512_ps(moved)};
    }
    static ALWAYS_INLINE Lanes broadcast(const float* value) { return {_mm512_set1_ps(*value)}; }
    ALWAYS_INLINE void store(float* out) const { _mm512_storeu_ps(out, v); }
  };
  static ALWAYS_INLINE Lanes multiply_add(Lanes a, Lanes b, Lanes c) {
    return {_mm512_fmadd_ps(a.v, b.v, c.v)};
  }
  static ALWAYS_INLINE Lanes subtract(Lanes a, Lanes b) { return {_mm512_sub_ps(a.v, b.v)}; }

  template <class Format, ActivationForm kForm>
  static void open(const uint8_t* panel, size_t cols, const OpenPanel& out) {
    open_panel<Format, kForm, 0>(panel, cols, out);
  }

  template <class Format>
  static constexpr OutlierKernels kOutliers = kOutlierKernels<Format>;
};

template <class Format, ActivationForm kForm>
void matmul(const MatmulArgs& args) {
  if (args.tokens < kLeastTileTokens) return matmul_vnni<Format, kForm>(args);
  static constexpr TileKernels kKernels = tile_kernels<Amx, Format, kForm>();
  multiply_tiles(args, kKernels);
}

}  // namespace

void use_amx(CpuKernels& kernels) {
  kernels.name = "amx";
#define QUIRE_FORMAT(dtype, Format, activation) \
  kernels.matmul[size_t(DType::dtype)] = matmul<format::Format, ActivationForm::activation>;
#include "backend/cpu/quantized_formats.inc"
#undef QUIRE_FORMAT
}

}  // namespace quire

#endif
