// Products with bf16 weights by `tdpbf16ps`, which multiplies a tile of tokens with a tile of weights over 32 columns:
// the even and the odd columns' products are added in f32 each for themselves by fused multiply-adds, then both to the
// sum. It takes subnormal numbers for zero.
//
// The tile instructions are written out, so that the file needs no option of the compiler.
#if defined(__x86_64__)

#include "backend/cpu/amx/amx_kernels.h"
#include "backend/cpu/amx/bf16_tile_product.h"

namespace quire {
namespace {

struct Amx {
  static void configure(size_t tokens) {
    // What `ldtilecfg` reads.
    struct alignas(64) {
      uint8_t palette = 1;
      uint8_t start_row = 0;
      uint8_t reserved[14] = {};
      uint16_t row_bytes[16] = {};
      uint8_t rows[16] = {};
    } config;
    static_assert(sizeof(config) == 64);
    for (size_t tile = 0; tile < 8; ++tile) {
      config.row_bytes[tile] = 64;
      config.rows[tile] = uint8_t(bf16_tile_rows(tile, tokens));
    }
    asm volatile("ldtilecfg %0" : : "m"(config));
  }
  static void release() { asm volatile("tilerelease" : : : "memory"); }

  template <size_t kTile>
  static void zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
  }
  // All of memory is named because rows lie apart.
  template <size_t kTile>
  static void load(const void* rows, size_t stride_bytes) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(rows), "r"(stride_bytes), "i"(kTile) : "memory");
  }
  template <size_t kTile>
  static void store(void* rows, size_t stride_bytes) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(rows), "r"(stride_bytes), "i"(kTile) : "memory");
  }
  template <size_t kSums, size_t kInputs, size_t kWeights>
  static void multiply() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSums), "i"(kInputs), "i"(kWeights));
  }
};

void matmul(const MatmulArgs& args) {
  static constexpr Bf16TileKernels kKernels = bf16_tile_kernels<Amx>();
  multiply_bf16_tiles(args, kKernels);
}

}  // namespace

void use_amx_bf16(CpuKernels& kernels) {
  kernels.matmul[size_t(DType::bf16)] = matmul;
  kernels.panels[size_t(DType::bf16)] = bf16_panel_format<2>();
  kernels.attend = attend_amx;
}

}  // namespace quire

#endif
