// Products with bf16 weights by `tdpbf16ps`, which multiplies a tile of tokens with a tile of weights over 32 columns:
// the even and the odd columns' products are added in f32 each for themselves by fused multiply-adds, then both to the
// sum. It takes subnormal numbers for zero.
#if defined(__x86_64__)

#include "backend/cpu/amx/amx_kernels.h"
#include "backend/cpu/amx/bf16_tile_product.h"
#include "backend/cpu/amx/tile_instructions.h"

namespace quire {
namespace {

struct Amx : Bf16TileInstructions {
  static void configure(size_t tokens) {
    TileConfig config;
    for (size_t tile = 0; tile < 8; ++tile) config.set(tile, bf16_tile_rows(tile, tokens), 64);
    config.load();
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
  kernels.inputs[size_t(DType::bf16)] = bf16_input_format();
  kernels.attend = attend_amx;
}

}  // namespace quire

#endif
