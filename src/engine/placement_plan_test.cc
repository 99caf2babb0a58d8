#include "engine/placement_plan.h"

#include <gtest/gtest.h>

#include "backend/cpu/cpu_backend.h"
#include "backend/split_backend.h"
#include "model/synth.h"
#include "model/type_mix.h"

namespace quire {
namespace {

// The 8 B shape in q4_0: 32 layers of some 123 MB, an embedding and a head.
class PlacementPlanTest : public testing::Test {
 protected:
  static constexpr size_t kPlenty = size_t(1) << 40;

  PlacementCase asked() const { return {*file_, spec_, options_, backend_}; }
  PlacementPlan plan(uint32_t layers) const { return plan_placement(asked(), {.device_layers = layers}); }
  std::optional<PlacementPlan> best(size_t device, size_t host, const PlacementWish& wish = {}) const {
    return best_placement(asked(), wish, {device, host}, rates_);
  }

  std::unique_ptr<ModelFile> file_ = synth_head(synth_shape("llama-8b"), TypeMix("q4_0"));
  ModelSpec spec_ = read_model_spec(*file_);
  EngineOptions options_{.context = 4096};
  SplitBackend backend_{std::make_unique<CpuBackend>(scalar_kernels(), 1),
                        std::make_unique<CpuBackend>(scalar_kernels(), 1)};
  SideRates rates_{.device_bytes_per_s = 3e12, .host_bytes_per_s = 1e11, .crossing_s = 1e-5};
};

TEST_F(PlacementPlanTest, EveryLayerIsOnOneSideWithItsWeightsAndItsPages) {
  const PlacementPlan whole = plan(32), half = plan(16), none = plan(0);
  EXPECT_EQ(whole.crossings, 0u);
  EXPECT_EQ(half.crossings, 1u);
  EXPECT_EQ(half.device.kv + half.host.kv, whole.device.kv);
  EXPECT_EQ(half.device.kv, half.host.kv);
  EXPECT_EQ(none.device.kv, 0u);
  EXPECT_EQ(whole.host.kv, 0u);
  EXPECT_DOUBLE_EQ(half.device_bytes + half.host_bytes, whole.device_bytes);
  EXPECT_GT(none.device_bytes, 0) << "the head";
  EXPECT_EQ(whole.host_bytes, 0);
  // The embedding goes to whoever begins; a largest matrix for each side, while it is packed.
  const TensorEntry& embedding = *file_->find("token_embd.weight");
  EXPECT_GE(half.device.weights + half.host.weights, whole.device.weights);
  EXPECT_LE(half.device.weights + half.host.weights, whole.device.weights + embedding.bytes);
}

TEST_F(PlacementPlanTest, TheTimeOfATokenIsItsBytesOnBothSidesAndTheCrossing) {
  const PlacementPlan half = plan(16);
  EXPECT_DOUBLE_EQ(half.seconds_per_token(rates_),
                   (half.device_bytes / 3e12 + half.host_bytes / 1e11) / kShareReached + 1e-5);
}

TEST_F(PlacementPlanTest, AsManyLayersAsFitAreTheDevices) {
  for (const uint32_t layers : {31u, 20u, 7u, 0u}) {
    const auto found = best(plan(layers).device.total(), kPlenty);
    ASSERT_TRUE(found) << layers;
    EXPECT_EQ(found->placement.device_layers, layers);
    EXPECT_LE(found->device.total(), plan(layers).device.total());
  }
  EXPECT_EQ(best(kPlenty, kPlenty)->placement.device_layers, 32u);
}

TEST_F(PlacementPlanTest, NothingIsFoundWhereOneSideHasTooLittle) {
  EXPECT_FALSE(best(plan(0).device.total() - 1, kPlenty));
  EXPECT_FALSE(best(plan(20).device.total(), plan(20).host.total() - 1));
  EXPECT_TRUE(best(plan(20).device.total(), plan(20).host.total()));
}

TEST_F(PlacementPlanTest, AWishIsKeptOrNothingIsFound) {
  EXPECT_EQ(best(kPlenty, kPlenty, {.device_layers = 5, .host_experts = {}})->placement.device_layers, 5u);
  EXPECT_EQ(best(kPlenty, kPlenty, {.device_layers = 99, .host_experts = {}})->placement.device_layers, 32u);
  EXPECT_FALSE(best(plan(10).device.total(), kPlenty, {.device_layers = 11, .host_experts = {}}));
}

// Layers of 8 experts, of which a token reads 2.
class ExpertPlacementTest : public PlacementPlanTest {
 protected:
  class ExpertsFile : public ModelFile {
   public:
    explicit ExpertsFile(const ModelFile& from) : ModelFile("experts") {
      metadata_ = from.metadata();
      for (const TensorEntry& tensor : from.tensors()) {
        if (tensor.name.find("ffn_") == std::string::npos || tensor.name.find("norm") != std::string::npos) {
          add_tensor(tensor);
          continue;
        }
        TensorEntry stack = tensor;
        stack.name.replace(stack.name.find(".weight"), 7, "_exps.weight");
        stack.shape.insert(stack.shape.begin(), 8);
        stack.bytes *= 8;
        add_tensor(stack);
      }
    }
    TensorData load(const TensorEntry&) const override { return {}; }
    std::vector<std::span<const std::byte>> stored(const TensorEntry&) const override { return {}; }
  };
  ExpertPlacementTest() {
    for (LayerSpec& layer : spec_.layers) layer.mlp = ExpertMlpSpec{.count = 8, .used = 2, .width = 14336};
    file_ = std::make_unique<ExpertsFile>(*file_);
  }
  PlacementPlan plan_experts(uint32_t layers) const {
    return plan_placement(asked(), {.host_experts = layers});
  }
};

TEST_F(ExpertPlacementTest, ATokenReadsTheExpertsItUses) {
  const PlacementPlan one = plan_experts(1);
  const double stack = double(file_->find("blk.31.ffn_up_exps.weight")->bytes);
  EXPECT_DOUBLE_EQ(one.host_bytes, 3 * stack * 2 / 8);
  EXPECT_EQ(one.crossings, 2u);
  EXPECT_EQ(one.host.kv, 0u);
}

TEST_F(ExpertPlacementTest, ExpertsGoToTheHostBeforeLayersDo) {
  const auto found = best(plan_experts(20).device.total(), kPlenty);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->placement.device_layers, 32u);
  EXPECT_EQ(found->placement.host_experts, 20u);
}

TEST_F(ExpertPlacementTest, LayersFollowWhereAllExpertsAreNotEnough) {
  const PlacementPlan both = plan_placement(asked(), {.device_layers = 12, .host_experts = 32});
  ASSERT_LT(both.device.total(), plan_experts(32).device.total());
  const auto found = best(both.device.total(), kPlenty);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->placement.device_layers, 12u);
}

TEST_F(PlacementPlanTest, BothSidesAndTheWayBetweenThemAreMeasured) {
  const SideRates rates = measure_sides(backend_, 64);
  EXPECT_GT(rates.device_bytes_per_s, 0);
  EXPECT_GT(rates.host_bytes_per_s, 0);
  EXPECT_GT(rates.crossing_s, 0);
}

}  // namespace
}  // namespace quire
