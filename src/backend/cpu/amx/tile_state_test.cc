// Whoever multiplies in tiles gives them back when it is done: a thread that holds some makes every switch between threads save 8 KB, and keeps
// the core from resting. Only a CPU with tiles can say whether it holds any.
#if defined(__x86_64__)

#include <algorithm>

#include <gtest/gtest.h>

#include "backend/cpu/amx/tile_instructions.h"
#include "backend/cpu/amx/tile_permission.h"
#include "backend/cpu/attention/attention_case.h"
#include "backend/cpu/kernel_choice.h"
#include "backend/cpu/matmul/matmul_case.h"

namespace quire {
namespace {

class TileState : public testing::Test {
 protected:
  void SetUp() override {
    if (!may_use_int8_tiles()) GTEST_SKIP() << "this CPU has no tiles of int8";
    kernels = present_kernels().back();
  }

  // Of this thread. `sttilecfg` writes what `ldtilecfg` read, and zeros where nothing is configured.
  static bool holds_tiles() {
    alignas(64) uint8_t config[sizeof(TileConfig)];
    asm volatile("sttilecfg %0" : "=m"(config));
    return std::any_of(config, config + sizeof(config), [](uint8_t byte) { return byte != 0; });
  }

  CpuKernels kernels = {};
};

TEST_F(TileState, IsSeenWhileTilesAreHeld) {
  EXPECT_FALSE(holds_tiles());
  TileConfig config;
  config.set(0, 16, 64);
  config.load();
  const bool held = holds_tiles();
  TileInstructions::release();
  EXPECT_TRUE(held);
  EXPECT_FALSE(holds_tiles());
}

TEST_F(TileState, IsGivenBackByProductsOfEveryType) {
  for (size_t type = 0; type < kDTypeCount; ++type) {
    if (kernels.matmul[type] == nullptr) continue;
    for (size_t tokens : {1u, 2u, 9u, 16u, 33u, 100u}) {
      MatmulCase(DType(type), 33, 512, tokens).add_outliers().product(kernels);
      ASSERT_FALSE(holds_tiles()) << traits(DType(type)).name << ", " << tokens << " tokens";
    }
  }
}

TEST_F(TileState, IsGivenBackByAttention) {
  for (KvFormat format : {KvFormat::bf16, KvFormat::f16}) {
    const AttentionCase test = {{.kv_heads = 2,
                                 .key_dim = 64,
                                 .value_dim = 64,
                                 .window = 0,
                                 .key_format = format,
                                 .value_format = format},
                                8};
    Attention attention(test, 150);
    for (uint32_t chunk : {1u, 40u}) {
      attention.compute(kernels, 40, chunk, 1);
      ASSERT_FALSE(holds_tiles()) << "runs of " << chunk;
    }
  }
}

}  // namespace
}  // namespace quire

#endif
