#include "backend/cuda/matmul/expert_plan.h"

#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace quire::cuda {
namespace {

constexpr ExpertShapes kShapes = {{WeightFormat::bf16, 1536, 2048}, {WeightFormat::bf16, 2048, 768}};

TEST(ExpertPlan, NoRoutingMakesMoreItemsThanAreReckonedWith) {
  std::minstd_rand random(3);
  for (uint32_t round = 0; round < 300; ++round) {
    const uint32_t experts = 1 + uint32_t(random() % 64), used = 1 + uint32_t(random() % experts);
    const ExpertCounts counts = {1 + uint32_t(random() % 300), used, experts};
    const uint32_t item_tokens = 1u << (3 + random() % 5);
    std::vector<uint32_t> of_expert(experts);
    for (uint32_t token = 0; token < counts.tokens; ++token) {
      // Neighbours of a random one, or always the first: what is most uneven.
      const uint32_t first = round % 3 == 0 ? 0 : uint32_t(random() % experts);
      for (uint32_t i = 0; i < used; ++i) ++of_expert[(first + i) % experts];
    }
    uint32_t items = 0;
    for (const uint32_t pairs : of_expert) items += (pairs + item_tokens - 1) / item_tokens;
    EXPECT_LE(items, most_items(counts, item_tokens));
  }
}

TEST(ExpertPlan, FewTokensOfAnExpertAreStreamedAndManyAreTiled) {
  constexpr DeviceTraits kHopper = {90, 132};
  EXPECT_EQ(plan_experts(kHopper, {1, 8, 128}, kShapes).kernel, ProductKernel::stream);
  EXPECT_EQ(plan_experts(kHopper, {64, 8, 128}, kShapes).item_tokens, 8u);
  EXPECT_EQ(plan_experts(kHopper, {128, 8, 128}, kShapes).item_tokens, 16u);
  EXPECT_EQ(plan_experts(kHopper, {16, 4, 4}, kShapes).item_tokens, 16u);
  EXPECT_EQ(plan_experts(kHopper, {512, 8, 128}, kShapes).kernel, ProductKernel::tile);
  EXPECT_EQ(plan_experts(kHopper, {2048, 8, 128}, kShapes).item_tokens, 128u);
  EXPECT_EQ(plan_experts({120, 100}, {64, 8, 128}, kShapes).kernel, ProductKernel::plain);
}

TEST(ExpertPlan, StreamKernelsFitAMultiprocessorOrSayThatTheyDoNot) {
  for (const WeightFormat format : kWeightFormats) {
    for (const uint32_t item_tokens : {8u, 16u}) {
      for (const uint32_t cols : {96u, 768u, 2048u, 2880u, 4096u, 7168u, 16384u}) {
        const ExpertStreamPlan plan = plan_expert_stream({format, 1024, cols}, item_tokens);
        if (plan.stages == 0) {
          EXPECT_GT(cols, item_tokens == 8 ? 4096u : 2048u) << name(format);
          continue;
        }
        EXPECT_GE(plan.stages, 2u);
        EXPECT_LE(plan.shared_bytes, kSharedBytesOfOne);
        EXPECT_EQ(plan.activation_bytes % 128, 0u);
        EXPECT_EQ(plan.stage_bytes % 128, 0u);
        if (cols <= 2048) {
          EXPECT_GE(plan.stages, 3u) << name(format) << " " << item_tokens;
        }
      }
    }
  }
}

TEST(ExpertPlan, WideExpertsWhoseActivationsLeaveNoRoomAreTiled) {
  const ExpertShapes wide = {{WeightFormat::bf16, 1024, 16384}, {WeightFormat::bf16, 16384, 512}};
  EXPECT_EQ(plan_experts({90, 132}, {4, 2, 16}, wide).kernel, ProductKernel::tile);
}

TEST(ExpertPlan, ItemsFitTheKernelsTheyAreFor) {
  for (uint32_t tokens = 1; tokens <= 4096; tokens += 7) {
    const ExpertPlan plan = plan_experts({90, 132}, {tokens, 8, 128}, kShapes);
    if (plan.kernel == ProductKernel::stream) {
      EXPECT_LE(plan.item_tokens, kStreamTokens);
    } else {
      EXPECT_TRUE(plan.item_tokens == 64 || plan.item_tokens == 128);
    }
  }
}

}  // namespace
}  // namespace quire::cuda
