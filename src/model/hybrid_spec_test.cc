// Specs of models whose layers are of several kinds, and what is refused of them.
#include <gtest/gtest.h>

#include "model/refusal.h"
#include "model/test_head.h"

namespace quire {
namespace {

HeadOnly hybrid() {
  HeadOnly file("qwen35");
  for (const auto& [key, value] :
       {std::pair("ssm.group_count", 2), std::pair("ssm.time_step_rank", 4), std::pair("ssm.state_size", 16),
        std::pair("ssm.inner_size", 48), std::pair("ssm.conv_kernel", 4)})
    file.set(std::string("qwen35.") + key, uint64_t(value));
  return file;
}

TEST(ModelSpec, AHybridHasAttentionInEveryFourthLayerAndLeavesOutWhatPredictsAhead) {
  HeadOnly file = hybrid();
  file.set("qwen35.block_count", uint64_t(13)).set("qwen35.nextn_predict_layers", uint64_t(1));
  const ModelSpec spec = read_model_spec(file);
  ASSERT_EQ(spec.layers.size(), 12u);
  for (size_t i = 0; i < 12; ++i) {
    EXPECT_EQ(spec.layers[i].is_recurrent(), i % 4 != 3) << i;
    EXPECT_EQ(spec.layers[i].norms.mlp_tensor, "post_attention_norm");
  }
  EXPECT_TRUE(spec.layers[3].gqa().output_gate);
  const auto& net = std::get<DeltaNetSpec>(spec.layers[0].mixer);
  EXPECT_EQ(net.value_dim, 12u);
  EXPECT_EQ(net.order, KeyOrder::tiled);
  EXPECT_THROW(spec.layers[0].gqa(), Error);
}

TEST(ModelSpec, HostileHybridsAreRefusedNamingTheKey) {
  const auto refused = [](const std::string& key, uint64_t value) {
    HeadOnly file = hybrid();
    file.set("qwen35." + key, value);
    const std::string text = message(file);
    EXPECT_NE(text.find("qwen35." + key), std::string::npos) << key << ": " << text;
  };
  refused("ssm.group_count", 0);
  refused("ssm.time_step_rank", 3);
  refused("ssm.inner_size", 50);
  refused("ssm.state_size", 6);
  refused("ssm.state_size", 1 << 24);
  refused("ssm.conv_kernel", 1);
  refused("ssm.conv_kernel", 1 << 20);
  refused("full_attention_interval", 0);
  refused("nextn_predict_layers", 12);
  HeadOnly missing("qwen35");
  EXPECT_NE(message(missing).find("qwen35.ssm."), std::string::npos) << message(missing);
}

TEST(ModelSpec, ABackendWithoutTheOperationsRefusesAHybridInASentence) {
  const HeadOnly file = hybrid(), plain;
  BackendTraits backend;
  EXPECT_EQ(refusal_of(file, read_model_spec(file), backend), "");
  backend.limits.recurrent = false;
  EXPECT_NE(refusal_of(file, read_model_spec(file), backend).find("layer 0 is recurrent"), std::string::npos);
  EXPECT_EQ(refusal_of(plain, read_model_spec(plain), backend), "");
}

// Mamba-2 beside attention: kv_heads and widths by layer.
HeadOnly mixed(const std::string& architecture, std::vector<uint64_t> kv_heads,
               std::vector<uint64_t> widths) {
  HeadOnly file(architecture);
  const auto set = [&](const char* key, MetadataValue value) {
    file.set(architecture + "." + key, std::move(value));
  };
  set("block_count", uint64_t(kv_heads.size()));
  set("attention.head_count_kv", std::move(kv_heads));
  set("feed_forward_length", std::move(widths));
  for (const auto& [key, value] :
       {std::pair("ssm.group_count", 2), std::pair("ssm.time_step_rank", 4), std::pair("ssm.state_size", 16),
        std::pair("ssm.inner_size", 48), std::pair("ssm.conv_kernel", 4)})
    set(key, uint64_t(value));
  return file;
}

TEST(HybridSpec, ALayerOfNemotronIsMambaOrAttentionOrAnMlp) {
  const ModelSpec spec = read_model_spec(mixed("nemotron_h", {0, 0, 2, 0}, {0, 96, 0, 0}));
  ASSERT_EQ(spec.layers.size(), 4u);
  const auto* mamba = std::get_if<StateSpaceSpec>(&spec.layers[0].mixer);
  ASSERT_NE(mamba, nullptr);
  EXPECT_EQ(mamba->head_dim, 12u);
  EXPECT_TRUE(std::holds_alternative<AbsentSpec>(spec.layers[0].mlp));
  EXPECT_TRUE(std::holds_alternative<AbsentSpec>(spec.layers[1].mixer));
  EXPECT_EQ(std::get<DenseMlpSpec>(spec.layers[1].mlp).gate.kind, Nonlinearity::squared_relu);
  EXPECT_EQ(spec.layers[1].norms.mlp_tensor, "attn_norm");
  EXPECT_FALSE(spec.layers[2].gqa().rope.has_value());
  EXPECT_TRUE(kv_shapes(spec, KvFormats())[1].empty());
  EXPECT_NE(message(mixed("nemotron_h", {2, 0}, {96, 0})).find("nemotron_h.attention.head_count_kv"),
            std::string::npos);
}

TEST(HybridSpec, ListsMayGoOnToLayersThatPredictAhead) {
  HeadOnly file = mixed("nemotron_h", {0, 0, 2, 0, 2}, {0, 96, 0, 0, 96});
  file.set("nemotron_h.nextn_predict_layers", uint64_t(1));
  EXPECT_EQ(read_model_spec(file).layers.size(), 4u);
  file.set("nemotron_h.attention.head_count_kv", std::vector<uint64_t>{0, 0, 2});
  EXPECT_NE(message(file).find("nemotron_h.attention.head_count_kv has 3 values"), std::string::npos)
      << message(file);
}

TEST(HybridSpec, HostileNumbersAreRefusedNamingTheKey) {
  const auto refused = [](const char* architecture, const std::string& key, MetadataValue value) {
    HeadOnly file = mixed(architecture, {0, 2, 0, 0}, {96, 96, 96, 96});
    file.set("lfm2.shortconv.l_cache", uint64_t(3));
    file.set(architecture + ("." + key), std::move(value));
    const std::string text = message(file);
    EXPECT_NE(text.find(architecture + ("." + key)), std::string::npos) << key << ": " << text;
  };
  for (const char* architecture : {"granitehybrid", "mamba2"}) {
    refused(architecture, "ssm.group_count", uint64_t(3));
    refused(architecture, "ssm.group_count", uint64_t(0));
    refused(architecture, "ssm.time_step_rank", uint64_t(0));
    refused(architecture, "ssm.inner_size", uint64_t(50));
    refused(architecture, "ssm.state_size", uint64_t(6));
    refused(architecture, "ssm.state_size", uint64_t(1) << 24);
    refused(architecture, "ssm.conv_kernel", uint64_t(0));
    refused(architecture, "ssm.conv_kernel", uint64_t(1) << 20);
    refused(architecture, "attention.head_count_kv", std::vector<uint64_t>{0, 2});
    refused(architecture, "feed_forward_length", std::vector<uint64_t>{96});
  }
  refused("jamba", "ssm.time_step_rank", uint64_t(0));
  refused("jamba", "ssm.state_size", uint64_t(1) << 24);
  refused("lfm2", "shortconv.l_cache", uint64_t(0));
  refused("lfm2", "shortconv.l_cache", uint64_t(65));
  refused("lfm2", "attention.head_count_kv", std::vector<uint64_t>{0, uint64_t(1) << 40, 0, 0});
  EXPECT_NE(message(HeadOnly("lfm2")).find("lfm2.shortconv.l_cache"), std::string::npos);
  HeadOnly layers = hybrid();
  layers.set("qwen35.attention.recurrent_layers", std::vector<bool>{true, false});
  EXPECT_NE(message(layers).find("qwen35.attention.recurrent_layers speaks of 2 layers"), std::string::npos);
}

TEST(HybridSpec, EveryKindOfRecurrentLayerIsRefusedByABackendWithoutTheOperations) {
  BackendTraits backend;
  backend.limits.recurrent = false;
  const MixerSpec mixers[] = {DeltaNetSpec{}, KimiDeltaSpec{}, StateSpaceSpec{}, SelectiveScanSpec{},
                              ShortConvolutionSpec{}};
  const HeadOnly plain;
  for (const MixerSpec& mixer : mixers) {
    ModelSpec spec = read_model_spec(plain);
    spec.layers[1].mixer = mixer;
    EXPECT_NE(refusal_of(plain, spec, backend).find("layer 1 is recurrent"), std::string::npos);
  }
  backend.limits = {};
  backend.limits.state_keys = 256;
  backend.limits.convolution_span = 16;
  const auto refusal = [&](const MixerSpec& mixer, const std::optional<StateSpaceSpec>& beside = {}) {
    ModelSpec spec = read_model_spec(plain);
    spec.layers[1].mixer = mixer;
    spec.layers[1].beside = beside;
    return refusal_of(plain, spec, backend);
  };
  EXPECT_EQ(refusal(DeltaNetSpec{.key_dim = 256}), "");
  EXPECT_NE(refusal(DeltaNetSpec{.key_dim = 260}).find("layer 1 has 260 keys in a state, and 256 are"),
            std::string::npos);
  EXPECT_NE(refusal(ShortConvolutionSpec{.span = 17}).find("layer 1 has 17 tokens in a convolution"),
            std::string::npos);
  EXPECT_NE(refusal(ShortConvolutionSpec{}, StateSpaceSpec{.state_dim = 512}).find("has 512 keys in a state"),
            std::string::npos);
  backend.limits = {};
  backend.limits.all_gates = false;
  ModelSpec gated = read_model_spec(plain);
  gated.layers[2].mlp = DenseMlpSpec{.width = 128, .gate = {.kind = Nonlinearity::sigmoid}};
  EXPECT_NE(refusal_of(plain, gated, backend).find("layer 2 has gates with an unusual nonlinearity"),
            std::string::npos);
  backend.limits = {};
  backend.limits.plain_experts = false;
  ModelSpec spec = read_model_spec(plain);
  spec.layers[2].mlp =
      DenseMlpSpec{.width = 128, .gated = false, .gate = {.kind = Nonlinearity::squared_relu}};
  EXPECT_NE(refusal_of(plain, spec, backend).find("layer 2 has an MLP with a squared ReLU"),
            std::string::npos);
  spec.layers[2].mlp = ExpertMlpSpec{.count = 4, .used = 2, .width = 128, .gated = false};
  EXPECT_NE(refusal_of(plain, spec, backend).find("layer 2 has experts without a gate"), std::string::npos);
}

}  // namespace
}  // namespace quire
