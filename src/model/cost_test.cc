#include "model/cost.h"

#include <gtest/gtest.h>

#include "backend/cpu/cpu_backend.h"

namespace quire {
namespace {

Weight matrix(DType dtype, size_t rows, size_t cols) {
  static constexpr std::byte kNoBytes{};  // counting never reads them
  return {{&kNoBytes, dtype, rows, cols}, nullptr};
}

// Two layers of width 64, 4 heads and 2 KV heads of 16, an MLP of 128, a vocabulary of 100; everything q8_0 (34 bytes
// for 32 values) but the head, which is f16. The first layer sees 8 tokens only.
struct SmallModel {
  SmallModel() {
    spec.vocab = 100;
    spec.dim = 64;
    const GqaSpec attention{.heads = 4, .kv_heads = 2, .key_dim = 16, .value_dim = 16};
    spec.layers.assign(2, {.mixer = attention, .mlp = DenseMlpSpec{.width = 128}});
    spec.layers[0].gqa().window = 8;
    weights.embedding = matrix(DType::q8_0, 100, 64);
    weights.head = matrix(DType::f16, 100, 64);
    give_weights();
  }

  // Those that every file has: q8_0, but for routers.
  void give_weights() {
    weights.blocks.clear();
    for (const LayerBlock& block : layer_blocks(spec)) {
      BlockWeights& made = weights.blocks.emplace_back();
      made.layer = block.layer;
      made.block = block.block;
      made.roles = block.roles();
      for (const Role& role : made.roles) {
        const bool wanted = role.kind == RoleKind::product && role.presence == Presence::required;
        const DType type = role.name == "router" ? DType::f32 : DType::q8_0;
        const size_t rows = wanted ? role.stacked() * role.shape[role.shape.size() - 2] : 0;
        made.weights.push_back(wanted ? matrix(type, rows, role.shape.back()) : Weight{});
      }
    }
  }

  StepCost step(const StepShape& shape) const {
    const CpuBackend backend(scalar_kernels(), 1);
    const KvLayout layout = make_kv_layout(kv_shapes(spec, KvFormat::f16));
    return CostModel(weights, backend).step(shape, layout);
  }

  ModelSpec spec;
  Weights weights;
};

// Values of a layer's matrices: 64 * 64 * 2 + 32 * 64 * 2 + 128 * 64 * 3 = 36864.
constexpr double kLayerValues = 36864;
constexpr double kHeadValues = 6400;
constexpr double kKvRowBytes = 2 * (16 + 16) * 2;  // heads, key and value, f16

TEST(CostModel, CountsOneTokenAtTheStart) {
  const StepCost cost = SmallModel().step({.sequences = 1, .tokens = 1, .depth = 0, .logit_rows = 1});
  EXPECT_EQ(cost.int8_ops, 2 * 2 * kLayerValues);
  EXPECT_EQ(cost.f32_ops,
            2 * kHeadValues + 2 * (2 * 4 * 32));  // the head, and a token that sees itself, twice
  EXPECT_EQ(cost.weight_bytes, 2 * kLayerValues / 32 * 34 + kHeadValues * 2);
  EXPECT_EQ(cost.kv_bytes, 2 * kKvRowBytes);
  EXPECT_DOUBLE_EQ(cost.ops_per_byte(), cost.ops() / cost.bytes());
}

TEST(CostModel, AWindowLimitsWhatATokenSeesAndReads) {
  const StepCost cost = SmallModel().step({.sequences = 1, .tokens = 1, .depth = 99, .logit_rows = 0});
  EXPECT_EQ(cost.f32_ops, (8 + 100) * 2 * 4 * 32);
  EXPECT_EQ(cost.kv_bytes, (8 + 100) * kKvRowBytes);
}

TEST(CostModel, ARunReadsWeightsAndRowsOnceAndComputesEveryPair) {
  const StepCost cost = SmallModel().step({.sequences = 1, .tokens = 10, .depth = 20, .logit_rows = 1});
  EXPECT_EQ(cost.int8_ops, 10 * 2 * 2 * kLayerValues);
  EXPECT_EQ(cost.weight_bytes, 2 * kLayerValues / 32 * 34 + kHeadValues * 2);
  const double pairs_in_window = 10 * 8;
  const double pairs = 21 + 22 + 23 + 24 + 25 + 26 + 27 + 28 + 29 + 30;
  EXPECT_EQ(cost.f32_ops, 2 * kHeadValues + (pairs_in_window + pairs) * 2 * 4 * 32);
  EXPECT_EQ(cost.kv_bytes, (17 + 30) * kKvRowBytes);  // positions 13 to 29, and 0 to 29
}

TEST(CostModel, SequencesShareWeightsButNotTheirCache) {
  const StepCost one = SmallModel().step({.sequences = 1, .tokens = 1, .depth = 50, .logit_rows = 1});
  const StepCost four = SmallModel().step({.sequences = 4, .tokens = 1, .depth = 50, .logit_rows = 4});
  EXPECT_EQ(four.ops(), 4 * one.ops());
  EXPECT_EQ(four.kv_bytes, 4 * one.kv_bytes);
  EXPECT_EQ(four.weight_bytes, one.weight_bytes);
}

TEST(CostModel, ProductsAndAttentionAreAllOfAStep) {
  const SmallModel model;
  const CpuBackend backend(scalar_kernels(), 1);
  const KvLayout layout = make_kv_layout(kv_shapes(model.spec, KvFormat::f16));
  const CostModel costs(model.weights, backend);
  const StepShape shape{.sequences = 3, .tokens = 5, .depth = 20, .logit_rows = 1};
  EXPECT_EQ(costs.products(shape).kv_bytes, 0);
  EXPECT_EQ(costs.attention(shape, layout).weight_bytes, 0);
  EXPECT_EQ(costs.products(shape).bytes() + costs.attention(shape, layout).bytes(),
            costs.step(shape, layout).bytes());
  EXPECT_EQ(costs.products(shape).ops() + costs.attention(shape, layout).ops(),
            costs.step(shape, layout).ops());
}

TEST(CostModel, WithoutLogitsTheHeadIsNotRead) {
  const StepCost with = SmallModel().step({.sequences = 1, .tokens = 4, .depth = 0, .logit_rows = 1});
  const StepCost without = SmallModel().step({.sequences = 1, .tokens = 4, .depth = 0, .logit_rows = 0});
  EXPECT_EQ(with.weight_bytes - without.weight_bytes, kHeadValues * 2);
  EXPECT_EQ(with.ops() - without.ops(), 2 * kHeadValues);
}

TEST(CostModel, OfExpertsOnlyThoseThatAreUsedCount) {
  SmallModel model;
  for (LayerSpec& layer : model.spec.layers) layer.mlp = ExpertMlpSpec{.count = 8, .used = 2, .width = 32};
  model.give_weights();
  constexpr double kExpertValues = 3 * 32 * 64;
  constexpr double kAttentionValues = 64 * 64 * 2 + 32 * 64 * 2;
  const StepCost one = model.step({.sequences = 1, .tokens = 1, .depth = 0, .logit_rows = 0});
  EXPECT_EQ(one.int8_ops, 2 * 2 * (kAttentionValues + 2 * kExpertValues));
  const double router_bytes = 8 * 64 * 4;
  EXPECT_DOUBLE_EQ(one.weight_bytes, 2 * ((kAttentionValues + 2 * kExpertValues) / 32 * 34 + router_bytes));
  // Two tokens choose 2 of 8 each: on average 8 * (1 - 0.75 * 0.75) = 3.5 experts are read.
  const StepCost two = model.step({.sequences = 1, .tokens = 2, .depth = 0, .logit_rows = 0});
  EXPECT_EQ(two.int8_ops, 2 * one.int8_ops);
  EXPECT_DOUBLE_EQ(two.weight_bytes, 2 * ((kAttentionValues + 3.5 * kExpertValues) / 32 * 34 + router_bytes));
}

TEST(CostModel, CountsProductsOfBf16ApartFromTheOthers) {
  SmallModel model;
  const StepCost before = model.step({});
  model.weights.head = matrix(DType::bf16, 100, 64);
  const StepCost cost = model.step({});
  EXPECT_EQ(before.bf16_ops, 0);
  EXPECT_EQ(cost.bf16_ops, 2 * kHeadValues);
  EXPECT_EQ(cost.f32_ops, before.f32_ops - 2 * kHeadValues);
  EXPECT_EQ(cost.ops(), before.ops());
}

TEST(CostModel, ExactKernelsComputeEverythingInF32) {
  const SmallModel model;
  const CpuBackend backend(exact_kernels(), 1);
  const KvLayout layout = make_kv_layout(kv_shapes(model.spec, KvFormat::f32));
  const StepCost cost = CostModel(model.weights, backend).step({}, layout);
  EXPECT_EQ(cost.int8_ops, 0);
  EXPECT_EQ(cost.kv_bytes, 2 * 2 * kKvRowBytes);
}

}  // namespace
}  // namespace quire
