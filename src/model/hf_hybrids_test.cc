// What config.json says of models whose layers are of several kinds, in GGUF's words; and what is refused.
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/json.h"
#include "model/hf_config.h"
#include "model/test_folder.h"

namespace quire {
namespace {

using testing::HasSubstr;
using Numbers = std::vector<uint64_t>;

struct Config {
  explicit Config(const char* model_type, Json more = Json::object()) {
    json = {{"model_type", model_type},
            {"hidden_size", 32},
            {"intermediate_size", 48},
            {"num_hidden_layers", 4},
            {"vocab_size", 64},
            {"num_attention_heads", 4},
            {"head_dim", 8},
            {"num_key_value_heads", 2},
            {"max_position_embeddings", 64}};
    json.update(more);
  }
  HfConfig read() const {
    const std::string text = without_infinities(json.dump());
    return convert_hf_config(HfObject(parse_json(text, "config.json"), "config.json"), "model");
  }
  std::string error() const {
    return error_of([&] { read(); });
  }
  Config with(const char* key, Json value) const {
    Config changed = *this;
    changed.json[key] = std::move(value);
    return changed;
  }
  Json json;
};

const Config kGranite("granitemoehybrid", {{"layer_types", {"mamba", "mamba", "attention", "mamba"}},
                                           {"mamba_n_heads", 8},
                                           {"mamba_d_state", 16},
                                           {"mamba_n_groups", 1},
                                           {"num_local_experts", 0},
                                           {"shared_intermediate_size", 24}});
const Config kNemotron("nemotron_h", {{"hybrid_override_pattern", "M-*M"},
                                      {"mamba_num_heads", 6},
                                      {"mamba_head_dim", 12},
                                      {"n_groups", 2},
                                      {"ssm_state_size", 16}});
const Config kLfm2("lfm2", {{"full_attn_idxs", {2}}, {"conv_L_cache", 3}});

TEST(HfHybrids, SayWhichLayersAreAttention) {
  EXPECT_EQ(kGranite.read().metadata.maybe_numbers("granitehybrid.attention.head_count_kv", 4),
            (Numbers{0, 0, 2, 0}));
  EXPECT_EQ(kLfm2.read().metadata.maybe_numbers("lfm2.attention.head_count_kv", 4), (Numbers{0, 0, 2, 0}));
  const HfConfig jamba =
      Config("jamba", {{"attn_layer_period", 3}, {"attn_layer_offset", 1}, {"num_experts", 1}}).read();
  EXPECT_EQ(jamba.metadata.maybe_numbers("jamba.attention.head_count_kv", 4), (Numbers{0, 2, 0, 0}));
  EXPECT_EQ(jamba.metadata.number("jamba.ssm.time_step_rank"), 2u);
  const Metadata nemotron = kNemotron.read().metadata;
  EXPECT_EQ(nemotron.maybe_numbers("nemotron_h.attention.head_count_kv", 4), (Numbers{0, 0, 2, 0}));
  EXPECT_EQ(nemotron.maybe_numbers("nemotron_h.feed_forward_length", 4), (Numbers{0, 48, 0, 0}));
  EXPECT_EQ(nemotron.number("nemotron_h.ssm.inner_size"), 72u);
}

TEST(HfHybrids, AreOfExpertsWhereALayerIs) {
  const HfConfig nemotron = kNemotron.with("hybrid_override_pattern", "ME*E")
                                .with("n_routed_experts", 6)
                                .with("num_experts_per_tok", 2)
                                .with("moe_intermediate_size", 16)
                                .with("moe_shared_expert_intermediate_size", 24)
                                .with("moe_latent_size", 16)
                                .read();
  EXPECT_EQ(nemotron.metadata.text("general.architecture"), "nemotron_h_moe");
  EXPECT_EQ(nemotron.metadata.number("nemotron_h_moe.expert_count"), 6u);
  EXPECT_EQ(nemotron.metadata.number("nemotron_h_moe.expert_shared_feed_forward_length"), 24u);
  EXPECT_EQ(nemotron.metadata.number("nemotron_h_moe.moe_latent_size"), 16u);
}

TEST(HfHybrids, WidthsOfLfm2AreAdjusted) {
  const auto width = [](const Config& config) {
    return config.read().metadata.number("lfm2.feed_forward_length");
  };
  EXPECT_EQ(width(kLfm2.with("block_auto_adjust_ff_dim", false)), 48u);
  EXPECT_EQ(width(kLfm2.with("block_ff_dim", 12288)), 8192u);
  EXPECT_EQ(width(kLfm2.with("intermediate_size", 84)
                      .with("block_multiple_of", 16)
                      .with("block_ffn_dim_multiplier", 0.9)),
            64u);
}

TEST(HfHybrids, HostileConfigsAreRefusedNamingTheKey) {
  EXPECT_THAT(kGranite.with("layer_types", {"mamba", "attention"}).error(),
              HasSubstr("\"layer_types\" speaks of 2 layers"));
  EXPECT_THAT(kGranite.with("layer_types", {"mamba", "mlp", "mamba", "mamba"}).error(),
              HasSubstr("\"layer_types\""));
  EXPECT_THAT(kGranite.with("layer_types", {"mamba", "snake", "mamba", "mamba"}).error(),
              HasSubstr("\"layer_types\" has"));
  EXPECT_THAT(kGranite.with("mamba_d_conv", 0).error(), HasSubstr("\"mamba_d_conv\" is 0"));
  EXPECT_THAT(kGranite.with("mamba_n_heads", uint64_t(1) << 60).error(), HasSubstr("\"mamba_n_heads\""));
  EXPECT_THAT(kGranite.with("time_step_limit", {0.001, 0.1}).error(), HasSubstr("\"time_step_limit\""));
  EXPECT_THAT(kNemotron.with("hybrid_override_pattern", "M?").error(),
              HasSubstr("\"hybrid_override_pattern\" has"));
  EXPECT_THAT(kNemotron.with("hybrid_override_pattern", "").error(), HasSubstr("\"layers_block_type\""));
  EXPECT_THAT(kNemotron.with("hybrid_override_pattern", std::string(20000, 'M')).error(),
              HasSubstr("20000 layers"));
  EXPECT_THAT(kNemotron.with("hybrid_override_pattern", "ME-")
                  .with("n_routed_experts", 4)
                  .with("moe_intermediate_size", 16)
                  .error(),
              HasSubstr("both moe and mlp"));
  EXPECT_THAT(kNemotron.with("mlp_hidden_act", "gelu").error(), HasSubstr("\"mlp_hidden_act\""));
  EXPECT_THAT(kLfm2.with("full_attn_idxs", {4}).error(),
              HasSubstr("\"full_attn_idxs\" speaks of layer 4 of 4"));
  EXPECT_THAT(kLfm2.with("conv_L_cache", 0).error(), HasSubstr("\"conv_L_cache\" is 0"));
  EXPECT_THAT(kLfm2.with("block_ffn_dim_multiplier", -1.0).error(),
              HasSubstr("\"block_ffn_dim_multiplier\""));
  EXPECT_THAT(Config("jamba", {{"attn_layer_period", 2}, {"attn_layer_offset", 2}}).error(),
              HasSubstr("\"attn_layer_offset\" is 2, of a period of 2"));
  EXPECT_THAT(Config("llama", {{"layer_types",
                                {"linear_attention", "full_attention", "full_attention", "full_attention"}}})
                  .error(),
              HasSubstr("layers of type \"linear_attention\" are not supported"));
  EXPECT_THAT(Config("kimi_linear").error(), HasSubstr("qk_nope_head_dim"));
}

TEST(HfHybrids, InfinitiesAreReadAsTheyWereEverWritten) {
  const std::string text = R"({"a": [0.0, Infinity, -Infinity], "b": "Infinity \"Infinity"})";
  const HfObject object(parse_json(without_infinities(text), "config.json"), "config.json");
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(object.reals("a"), (std::vector<double>{0, infinity, -infinity}));
  EXPECT_EQ(object.maybe_text("b"), "Infinity \"Infinity");
  EXPECT_THROW(parse_json(without_infinities("[Infinit]"), "config.json"), Error);
}

}  // namespace
}  // namespace quire
