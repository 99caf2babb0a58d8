#include "backend/cuda/matmul/product_plan.h"

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

namespace quire::cuda {
namespace {

constexpr WeightShape kShapes[] = {{WeightFormat::bf16, 6144, 4096},   {WeightFormat::bf16, 4096, 4096},
                                   {WeightFormat::bf16, 28672, 4096},  {WeightFormat::bf16, 4096, 14336},
                                   {WeightFormat::bf16, 128256, 4096}, {WeightFormat::bf16, 100, 576},
                                   {WeightFormat::bf16, 1, 1},         {WeightFormat::bf16, 384, 1536}};

TEST(ProductPlan, StreamKernelsHaveTwoStagesOrMoreAndFitTheirPlaces) {
  for (const WeightFormat format : kWeightFormats) {
    for (uint32_t tokens = 1; tokens <= kStreamTokens; ++tokens) {
      const StreamPlan plan = plan_stream(format, tokens);
      EXPECT_GE(plan.stages, 2u) << name(format) << " " << tokens;
      EXPECT_GE(plan.shape.token_tiles * 8, tokens);
      EXPECT_EQ(plan.stage_bytes % 128, 0u);
      if (plan.shape.places == 2) {
        EXPECT_LE(plan.shared_bytes, kSharedBytesOfTwo);
        EXPECT_GT(3 * (plan.shared_bytes + 1024), 228u * 1024);  // a third block must not fit
      } else {
        EXPECT_LE(plan.shared_bytes, kSharedBytesOfOne);
        EXPECT_GT(plan.shared_bytes, kSharedBytesOfTwo);
      }
      EXPECT_EQ(plan.shape.warps % 4, 0u);  // four slices are four warps
    }
  }
}

TEST(ProductPlan, TileKernelsHaveThreeStagesOrMoreAndFitAMultiprocessor) {
  for (const WeightFormat format : kWeightFormats) {
    for (const uint32_t width : {32u, 64u, 128u, 192u}) {
      EXPECT_GE(tile_stages(format, width), 3u);
      EXPECT_LE(tile_shared_bytes(format, width), kSharedBytesOfOne);
      EXPECT_EQ(tile_stage_bytes(format, width) % 1024, 0u);  // swizzled rows begin at multiples of 1024
      EXPECT_EQ(tile_weight_bytes(format) % 1024, 0u);
    }
  }
}

TEST(ProductPlan, TilesCoverTheTokensWithoutMuchWaste) {
  for (uint32_t tokens = 17; tokens <= 4096; ++tokens) {
    const uint32_t width = tile_tokens_for(tokens);
    const uint32_t covered = (tokens + width - 1) / width * width;
    EXPECT_LE(covered, std::max(2 * tokens, tokens + 128)) << tokens;
  }
  EXPECT_EQ(tile_tokens_for(1536), 192u);
}

TEST(ProductPlan, EverySliceOfEveryTileIsComputedOnce) {
  for (const WeightShape& shape : kShapes) {
    for (const uint32_t tokens : {17u, 64u, 65u, 200u, 512u, 1536u, 2048u, 4096u}) {
      for (const uint32_t blocks : {132u, 114u, 78u, 1u}) {
        const TileSchedule schedule = schedule_tiles(shape, tokens, blocks);
        std::vector<int> computed(size_t(schedule.tiles) * schedule.slices);
        std::vector<uint32_t> sharers(schedule.tiles);
        uint32_t longest = 0;
        for (uint32_t block = 0; block < blocks; ++block) {
          TileCursor cursor(schedule, block);
          uint32_t units = 0;
          for (TileWork work; cursor.next(work);) {
            ASSERT_LT(work.first_slice, work.end_slice);
            ASSERT_LE(work.end_slice, schedule.slices);
            for (uint32_t s = work.first_slice; s < work.end_slice; ++s)
              ++computed[work.tile * schedule.slices + s];
            ++sharers[work.tile];
            units += work.end_slice - work.first_slice;
            if (work.tile >= schedule.whole && work.first_slice == 0) {
              EXPECT_EQ(work.end_slice, schedule.leading_slices(work.tile));
            }
          }
          longest = std::max(longest, units);
        }
        EXPECT_EQ(std::count(computed.begin(), computed.end(), 1), std::ptrdiff_t(computed.size()));
        for (uint32_t tile = schedule.whole; tile < schedule.tiles; ++tile) {
          EXPECT_EQ(sharers[tile], schedule.sharers(tile));
        }
        // No block has more than what whole tiles would give it.
        EXPECT_LE(longest, (schedule.tiles + blocks - 1) / blocks * schedule.slices);
      }
    }
  }
}

TEST(ProductPlan, FewTilesAreSharedByAllMultiprocessors) {
  const TileSchedule schedule = schedule_tiles({WeightFormat::q4_0, 4096, 4096}, 64, 132);
  EXPECT_EQ(schedule.tiles, 32u);
  EXPECT_EQ(schedule.whole, 0u);
  EXPECT_EQ(schedule.sharers(5), 4u);
}

TEST(ProductPlan, HopperHasKernelsOfItsOwn) {
  EXPECT_EQ(choose_kernel({90, 132}, 1), ProductKernel::stream);
  EXPECT_EQ(choose_kernel({90, 132}, 17), ProductKernel::tile);
  for (const int capability : {80, 86, 89, 100, 120}) {
    EXPECT_EQ(choose_kernel({capability, 100}, 1), ProductKernel::plain);
    EXPECT_EQ(choose_kernel({capability, 100}, 4096), ProductKernel::plain);
  }
}

}  // namespace
}  // namespace quire::cuda
