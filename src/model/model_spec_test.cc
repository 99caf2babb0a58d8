#include "model/model_spec.h"

#include <cmath>
#include <utility>

#include <gtest/gtest.h>

#include "backend/cpu/cpu_backend.h"
#include "base/error.h"
#include "model/test_head.h"

namespace quire {
namespace {

std::vector<uint32_t> windows(const ModelSpec& spec) {
  std::vector<uint32_t> windows;
  for (const LayerSpec& layer : spec.layers) windows.push_back(layer.window());
  return windows;
}

TEST(ModelSpec, AnUnknownArchitectureIsNamedWithTheKnownOnes) {
  const std::string text = message(HeadOnly("martian"));
  EXPECT_NE(text.find("martian"), std::string::npos) << text;
  EXPECT_NE(text.find("qwen3moe"), std::string::npos) << text;
}

TEST(ModelSpec, AbsurdNumbersAreRefusedNamingTheKey) {
  EXPECT_NE(
      message(HeadOnly().set("llama.embedding_length", uint64_t(0))).find("llama.embedding_length is 0"),
      std::string::npos);
  EXPECT_NE(message(HeadOnly().set("llama.block_count", uint64_t(1) << 40)).find("llama.block_count"),
            std::string::npos);
  EXPECT_NE(message(HeadOnly().set("llama.block_count", uint64_t(5000))).find("5000 layers"),
            std::string::npos);
  EXPECT_NE(
      message(HeadOnly().set("llama.attention.head_count_kv", uint64_t(3))).find("cannot share 3 KV heads"),
      std::string::npos);
  EXPECT_NE(
      message(HeadOnly().set("llama.attention.key_length", uint64_t(1) << 23)).find("more than any model"),
      std::string::npos);
  EXPECT_NE(message(HeadOnly().set("llama.rope.dimension_count", uint64_t(17))).find("cannot be rotated"),
            std::string::npos);
  EXPECT_NE(message(HeadOnly().set("llama.rope.scaling.type", std::string("spiral"))).find("'spiral'"),
            std::string::npos);
}

TEST(ModelSpec, Gemma3HasAWindowOnAllLayersButEverySixth) {
  const ModelSpec spec =
      read_model_spec(HeadOnly("gemma3").set("gemma3.attention.sliding_window", uint64_t(512)));
  EXPECT_EQ(windows(spec), (std::vector<uint32_t>{512, 512, 512, 512, 512, 0, 512, 512, 512, 512, 512, 0}));
  EXPECT_EQ(spec.layers[0].gqa().rope, 1u);
  EXPECT_EQ(spec.layers[5].gqa().rope, 0u);
}

TEST(ModelSpec, AFlagPerLayerChoosesTheLayersWithAWindow) {
  std::vector<bool> flags(12, false);
  flags[3] = true;
  HeadOnly file("qwen2");
  file.set("qwen2.attention.sliding_window", uint64_t(32))
      .set("qwen2.attention.sliding_window_pattern", flags);
  const std::vector<uint32_t> seen = windows(read_model_spec(file));
  for (size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i], i == 3 ? 32u : 0u);
  flags.pop_back();
  file.set("qwen2.attention.sliding_window_pattern", flags);
  EXPECT_NE(message(file).find("speaks of 11 layers"), std::string::npos);
}

TEST(ModelSpec, CountsMayBeSaidOncePerLayer) {
  std::vector<uint64_t> kv_heads(12, 2), widths(12, 128);
  kv_heads[5] = 1;
  widths[7] = 32;
  HeadOnly file;
  file.set("llama.attention.head_count_kv", kv_heads).set("llama.feed_forward_length", widths);
  const ModelSpec spec = read_model_spec(file);
  for (size_t i = 0; i < 12; ++i) {
    EXPECT_EQ(spec.layers[i].gqa().kv_heads, i == 5 ? 1u : 2u);
    EXPECT_EQ(std::get<DenseMlpSpec>(spec.layers[i].mlp).width, i == 7 ? 32u : 128u);
  }
  kv_heads[9] = 3;
  EXPECT_NE(message(file.set("llama.attention.head_count_kv", kv_heads)).find("cannot share 3 KV heads"),
            std::string::npos);
  kv_heads.pop_back();
  EXPECT_NE(message(file.set("llama.attention.head_count_kv", kv_heads)).find("11 values instead of 12"),
            std::string::npos);
}

TEST(ModelSpec, LeadingLayersAreDenseWhereTheOthersHaveExperts) {
  HeadOnly file;
  file.set("llama.expert_count", uint64_t(8)).set("llama.expert_used_count", uint64_t(2));
  file.set("llama.leading_dense_block_count", uint64_t(3));
  const ModelSpec spec = read_model_spec(file);
  for (size_t i = 0; i < 12; ++i)
    EXPECT_EQ(std::holds_alternative<DenseMlpSpec>(spec.layers[i].mlp), i < 3) << i;
  EXPECT_EQ(std::get<ExpertMlpSpec>(spec.layers[3].mlp).width, 128u);
  EXPECT_NE(message(file.set("llama.expert_used_count", uint64_t(9))).find("9 of 8 experts"),
            std::string::npos);
}

TEST(ModelSpec, SmolLm3LeavesEveryFourthLayerUnrotated) {
  const ModelSpec spec = read_model_spec(HeadOnly("smollm3"));
  for (size_t i = 0; i < spec.layers.size(); ++i)
    EXPECT_EQ(spec.layers[i].gqa().rope.has_value(), (i + 1) % 4 != 0);
}

HeadOnly with_experts(const std::string& architecture) {
  HeadOnly file(architecture);
  file.set(architecture + ".expert_count", uint64_t(16))
      .set(architecture + ".expert_used_count", uint64_t(4));
  return file;
}

const Routing& routing_of(const ModelSpec& spec) {
  return std::get<ExpertMlpSpec>(spec.layers.back().mlp).routing;
}

TEST(ModelSpec, RoutingIsWhatTheKeysSayOrWhatIsUsualForTheFamily) {
  const Routing usual = routing_of(read_model_spec(with_experts("glm4moe")));
  EXPECT_EQ(usual.score, RouterScore::sigmoid);
  EXPECT_TRUE(usual.normalized);
  EXPECT_EQ(routing_of(read_model_spec(with_experts("gpt-oss"))).score, RouterScore::softmax_of_chosen);
  EXPECT_FALSE(routing_of(read_model_spec(with_experts("qwen2moe"))).normalized);
  HeadOnly file = with_experts("glm4moe");
  file.set("glm4moe.expert_gating_func", uint64_t(4))
      .set("glm4moe.expert_weights_norm", false)
      .set("glm4moe.expert_weights_scale", 2.5)
      .set("glm4moe.expert_group_count", uint64_t(4))
      .set("glm4moe.expert_group_used_count", uint64_t(2))
      .set("glm4moe.expert_shared_count", uint64_t(2))
      .set("glm4moe.expert_feed_forward_length", uint64_t(24))
      .set("glm4moe.leading_dense_block_count", uint64_t(3))
      .set("glm4moe.nextn_predict_layers", uint64_t(2));
  const ModelSpec spec = read_model_spec(file);
  EXPECT_EQ(spec.layers.size(), 10u);
  EXPECT_TRUE(std::holds_alternative<DenseMlpSpec>(spec.layers[2].mlp));
  EXPECT_FALSE(spec.layers[2].shared.has_value());
  EXPECT_EQ(spec.layers[3].shared.value().width, 48u);
  const Routing said = routing_of(spec);
  EXPECT_EQ(said.score, RouterScore::sqrt_softplus);
  EXPECT_FALSE(said.normalized);
  EXPECT_EQ(said.scale, 2.5f);
  EXPECT_EQ(said.groups, 4u);
  EXPECT_EQ(said.groups_used, 2u);
}

TEST(ModelSpec, AbsurdRoutingIsRefusedNamingTheKey) {
  const auto refused = [](const char* key, MetadataValue value) {
    HeadOnly file = with_experts("dots1");
    file.set("dots1.expert_group_count", uint64_t(4)).set("dots1.expert_group_used_count", uint64_t(2));
    file.set(std::string("dots1.") + key, std::move(value));
    const std::string text = message(file);
    return text.find(key) != std::string::npos ? "" : text;
  };
  EXPECT_EQ(refused("expert_gating_func", uint64_t(5)), "");
  EXPECT_EQ(refused("expert_group_count", uint64_t(5)), "");
  EXPECT_EQ(refused("expert_group_used_count", uint64_t(5)), "");
  EXPECT_EQ(refused("expert_weights_scale", -1.0), "");
  EXPECT_EQ(refused("expert_shared_count", uint64_t(1000)), "");
  EXPECT_EQ(refused("nextn_predict_layers", uint64_t(12)), "");
  HeadOnly few = with_experts("dots1");  // 4 experts of groups of 1
  few.set("dots1.expert_group_count", uint64_t(16)).set("dots1.expert_group_used_count", uint64_t(3));
  EXPECT_NE(message(few).find("4 experts cannot be chosen"), std::string::npos) << message(few);
}

TEST(ModelSpec, SharedExpertsThatAFileHasAndDoesNotSpeakOfAreThere) {
  class WithShared : public HeadOnly {
   public:
    WithShared() : HeadOnly("llama4") {
      set("llama4.expert_count", uint64_t(16)).set("llama4.expert_used_count", uint64_t(1));
      set("llama4.interleave_moe_layer_step", uint64_t(2)).set("llama4.expert_group_count", uint64_t(0));
      add_tensor({"blk.1.ffn_up_shexp.weight", DType::f32, {40, 64}, 40 * 64 * 4});
    }
  };
  const ModelSpec spec = read_model_spec(WithShared());
  EXPECT_FALSE(spec.layers[0].shared.has_value());
  EXPECT_EQ(spec.layers[1].shared.value().width, 40u);
  EXPECT_EQ(spec.layers[1].gqa().query_key_norm, QueryKeyNorm::per_head_weightless);
  EXPECT_EQ(spec.layers[3].gqa().temperature.step, 8192u);
}

TEST(ModelSpec, HeadsThatNoModelHasAreRefusedBeforeTheirFrequenciesAreMade) {
  HeadOnly file;
  file.set("llama.attention.key_length", uint64_t(1) << 20);
  EXPECT_NE(message(file).find("llama.attention.key_length"), std::string::npos) << message(file);
}

TEST(ModelSpec, MoreWidthsOfHeadsThanAnyModelHasAreRefused) {
  HeadOnly file;
  file.set("llama.attention.key_length", std::vector<uint64_t>{2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24});
  EXPECT_NE(message(file).find("attention.key_length"), std::string::npos) << message(file);
}

TEST(ModelSpec, Cohere2RotatesOnlyLayersWithAWindow) {
  const ModelSpec spec = read_model_spec(HeadOnly("cohere2"));
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    EXPECT_EQ(spec.layers[i].window(), (i + 1) % 4 == 0 ? 0u : 4096u);
    EXPECT_EQ(spec.layers[i].gqa().rope.has_value(), (i + 1) % 4 != 0);
    EXPECT_EQ(spec.layers[i].norms.mlp_input, BlockInput::shared);
  }
}

TEST(ModelSpec, MistralsQueriesGrowWithTheContextItWasTrainedFor) {
  HeadOnly file("mistral3");
  file.set("mistral3.attention.temperature_scale", 0.1);
  EXPECT_NE(message(file).find("rope.scaling.original_context_length"), std::string::npos);
  file.set("mistral3.rope.scaling.original_context_length", uint64_t(16384));
  const QueryTemperature temperature = read_model_spec(file).layers[0].gqa().temperature;
  EXPECT_EQ(temperature.at(16383), 1.0f);
  EXPECT_EQ(temperature.at(16384), float(1 + double(0.1f) * std::log(2.0)));
}

}  // namespace
}  // namespace quire
