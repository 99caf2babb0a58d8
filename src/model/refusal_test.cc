#include "model/refusal.h"

#include <gtest/gtest.h>

#include "model/placement.h"
#include "model/synth.h"
#include "model/type_mix.h"

namespace quire {
namespace {

class RefusalTest : public testing::Test {
 protected:
  std::string refusal() const { return refusal_of(*file_, spec_, device_); }

  const std::unique_ptr<ModelFile> file_ = synth_head(synth_shape("tiny"), TypeMix("q4_0"));
  ModelSpec spec_ = read_model_spec(*file_);  // 4 layers, heads of 64, two query heads for each KV head
  BackendTraits device_{.device = "cuda:0",
                        .description = {},
                        .kernels = {},
                        .limits = {.head_dim = 256,
                                   .head_dim_multiple = 8,
                                   .heads_per_kv = 16,
                                   .dim_multiple = 4,
                                   .experts = 512,
                                   .experts_used = 32,
                                   .expert_width_multiple = 8,
                                   .mixed_experts = false,
                                   .vocabulary = 1 << 18,
                                   .unequal_heads = false,
                                   .chunks = false,
                                   .slopes = false,
                                   .scaled_inputs = false,
                                   .own_gates = false}};
};

TEST_F(RefusalTest, AModelWithinTheLimitsIsNotRefused) {
  EXPECT_EQ(refusal(), "");
}

TEST_F(RefusalTest, WithoutLimitsNothingIsRefused) {
  device_.limits = {};
  spec_.layers[0].gqa().key_dim = 321;
  spec_.vocab = 1 << 30;
  EXPECT_EQ(refusal(), "");
}

TEST_F(RefusalTest, HeadsThatAreTooLargeAreToldWithTheirLayerAndTheWayOut) {
  spec_.layers[2].gqa().value_dim = 320;
  EXPECT_EQ(refusal(),
            "tiny: layer 2 has 320 values in a head, and 256 are the most for the kernels of cuda:0; use "
            "--device cpu, or "
            "leave that layer to the CPU with --gpu-layers");
}

TEST_F(RefusalTest, EveryLimitIsLookedAt) {
  const ModelSpec right = spec_;
  const auto refuses = [&](const char* words) {
    const bool told = refusal().find(words) != std::string::npos;
    spec_ = right;
    return told;
  };
  spec_.layers[1].gqa().key_dim = 60;
  EXPECT_TRUE(refuses("60 values in a head, which is no multiple of 8"));
  spec_.layers[1].gqa().heads = 64;
  EXPECT_TRUE(refuses("32 query heads for each KV head"));
  spec_.dim = 254;
  EXPECT_TRUE(refuses("254 values in a row, which is no multiple of 4"));
  spec_.vocab = (1 << 18) + 1;
  EXPECT_TRUE(refuses("tokens in its vocabulary"));
  spec_.layers[3].mlp = ExpertMlpSpec{.count = 600, .used = 8, .width = 64};
  EXPECT_TRUE(refuses("600 experts"));
  spec_.layers[3].mlp = ExpertMlpSpec{.count = 64, .used = 40, .width = 64};
  EXPECT_TRUE(refuses("40 experts for each token"));
  spec_.layers[3].mlp = ExpertMlpSpec{.count = 64, .used = 8, .width = 60};
  EXPECT_TRUE(refuses("60 values in the hidden layer of an expert"));
  spec_.layers[1].gqa().chunk = 8192;
  EXPECT_TRUE(refuses("has attention in chunks"));
  spec_.layers[1].gqa().slopes = {0.5f, 0.25f, 0.125f, 0.0625f};
  EXPECT_TRUE(refuses("has scores that fall with the distance"));
  spec_.layers[2].gqa().own_gate = GateOf::heads;
  EXPECT_TRUE(refuses("has attention with a gate of its own"));
  spec_.layers[3].mlp = ExpertMlpSpec{.count = 8, .used = 2, .width = 64, .share_use = ShareUse::of_inputs};
  EXPECT_TRUE(refuses("has experts with scaled inputs"));
}

TEST_F(RefusalTest, WhatTheHostComputesIsNotAskedAbout) {
  spec_.layers[1].gqa().key_dim = 320;
  place(spec_, {.device_layers = 2});
  EXPECT_EQ(refusal(), "");
  place(spec_, {.device_layers = 3});
  EXPECT_NE(refusal(), "");
}

// A file whose only tensors are the gates and ups of one layer's experts.
class ExpertsFile : public ModelFile {
 public:
  ExpertsFile(DType gate, DType up) : ModelFile("experts") {
    add_tensor({"blk.3.ffn_gate_exps.weight", gate, {8, 64, 256}, 0});
    add_tensor({"blk.3.ffn_up_exps.weight", up, {8, 64, 256}, 0});
  }
  TensorData load(const TensorEntry&) const override { return {}; }
  std::vector<std::span<const std::byte>> stored(const TensorEntry&) const override { return {}; }
};

TEST_F(RefusalTest, ExpertsWhoseGatesAndUpsAreOfTwoTypesAreRefused) {
  spec_.layers[3].mlp = ExpertMlpSpec{.count = 8, .used = 2, .width = 64};
  EXPECT_EQ(refusal_of(ExpertsFile(DType::q4_k, DType::q4_k), spec_, device_), "");
  const std::string told = refusal_of(ExpertsFile(DType::q4_k, DType::q6_k), spec_, device_);
  EXPECT_NE(told.find("layer 3 has experts whose gates are q4_k and whose ups are q6_k"), std::string::npos)
      << told;
}

}  // namespace
}  // namespace quire
