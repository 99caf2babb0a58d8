// What config.json says of experts, layers and positions, in GGUF's words; and what is refused.
#include <cmath>
#include <filesystem>
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/json.h"
#include "model/hf_config.h"
#include "model/model_spec.h"
#include "model/test_folder.h"

namespace quire {
namespace {

using testing::HasSubstr;

// As a file would give it: what is not negative has no sign.
HfObject reread(const Json& config) {
  return HfObject(parse_json(config.dump(), "config.json"), "config.json");
}

class ConfigMaker {
 public:
  explicit ConfigMaker(const std::string& model_type) {
    config = {{"model_type", model_type},
              {"hidden_size", 32},
              {"intermediate_size", 48},
              {"num_hidden_layers", 6},
              {"vocab_size", 64},
              {"num_attention_heads", 4},
              {"max_position_embeddings", 64},
              {"head_dim", 8},
              {"num_key_value_heads", 2},
              {"num_experts_per_tok", 2},
              {"moe_intermediate_size", 16}};
  }
  ConfigMaker& set(const char* key, Json value) {
    config[key] = std::move(value);
    return *this;
  }
  HfConfig read() const { return convert_hf_config(reread(config), "model"); }
  std::string error() const {
    return error_of([&] { read(); });
  }

  Json config;
};

TEST(HfFamilies, SayHowExpertsAreChosen) {
  const HfConfig glm = ConfigMaker("glm4_moe")
                           .set("n_routed_experts", 8)
                           .set("n_shared_experts", 2)
                           .set("n_group", 4)
                           .set("topk_group", 2)
                           .set("first_k_dense_replace", 3)
                           .set("routed_scaling_factor", 2.5)
                           .set("norm_topk_prob", true)
                           .set("num_nextn_predict_layers", 1)
                           .read();
  const Metadata& metadata = glm.metadata;
  EXPECT_EQ(metadata.number("glm4moe.expert_gating_func"), 2u);
  EXPECT_EQ(metadata.number("glm4moe.expert_count"), 8u);
  EXPECT_EQ(metadata.number("glm4moe.expert_used_count"), 2u);
  EXPECT_EQ(metadata.number("glm4moe.expert_group_count"), 4u);
  EXPECT_EQ(metadata.number("glm4moe.expert_group_used_count"), 2u);
  EXPECT_EQ(metadata.number("glm4moe.expert_shared_feed_forward_length"), 32u);
  EXPECT_EQ(metadata.number("glm4moe.leading_dense_block_count"), 3u);
  EXPECT_EQ(metadata.real("glm4moe.expert_weights_scale"), 2.5);
  EXPECT_TRUE(metadata.flag("glm4moe.expert_weights_norm"));
  EXPECT_EQ(metadata.number("glm4moe.rope.dimension_count"), 4u);  // half of a head, if nothing is said
  EXPECT_EQ(glm.more_layers, 1u);
}

TEST(HfFamilies, SayWhichLayersAreDense) {
  const HfConfig some = ConfigMaker("qwen2_moe")
                            .set("num_experts", 4)
                            .set("shared_expert_intermediate_size", 24)
                            .set("mlp_only_layers", {0, 4})
                            .read();
  EXPECT_EQ(some.metadata.flags("quire.dense_layers"),
            (std::vector<bool>{true, false, false, false, true, false}));
  EXPECT_FALSE(some.metadata.flag("qwen2moe.expert_weights_norm"));
  const HfConfig every_other = ConfigMaker("ernie4_5_moe")
                                   .set("moe_num_experts", 4)
                                   .set("moe_k", 2)
                                   .set("moe_layer_interval", 2)
                                   .set("moe_layer_start_index", 2)
                                   .set("moe_layer_end_index", -1)
                                   .read();
  EXPECT_EQ(every_other.metadata.flags("quire.dense_layers"),
            (std::vector<bool>{true, true, true, false, true, false}));
  EXPECT_THAT(ConfigMaker("qwen2_moe")
                  .set("num_experts", 4)
                  .set("shared_expert_intermediate_size", 24)
                  .set("mlp_only_layers", {6})
                  .error(),
              HasSubstr("\"mlp_only_layers\" speaks of layer 6 of 6"));
}

TEST(HfFamilies, ReadTheTextOfModelsThatSeeImages) {
  ConfigMaker inner("ministral3");
  inner.set("rope_parameters", {{"rope_type", "yarn"},
                                {"rope_theta", 1e6},
                                {"factor", 16.0},
                                {"original_max_position_embeddings", 32},
                                {"mscale", 1.0},
                                {"mscale_all_dim", 1.0},
                                {"llama_4_scaling_beta", 0.1}});
  ConfigMaker outer("mistral3");
  outer.config = {{"model_type", "mistral3"}, {"text_config", inner.config}, {"eos_token_id", 7}};
  const HfConfig mistral = outer.read();
  EXPECT_EQ(mistral.metadata.text("quire.text_of"), "mistral3");
  EXPECT_EQ(mistral.metadata.text("general.architecture"), "mistral3");
  EXPECT_EQ(mistral.metadata.number("tokenizer.ggml.eos_token_id"), 7u);
  EXPECT_EQ(mistral.metadata.real("mistral3.attention.temperature_scale"), 0.1);
  EXPECT_EQ(mistral.metadata.real("quire.rope.attention_factor"), 1.0);
  // Qwen2-VL's own files have all of it in one.
  const HfConfig qwen =
      ConfigMaker("qwen2_vl").set("rope_scaling", {{"type", "mrope"}, {"mrope_section", {1, 1, 2}}}).read();
  EXPECT_EQ(qwen.metadata.text("general.architecture"), "qwen2vl");
  outer.config.erase("text_config");
  EXPECT_THAT(outer.error(), HasSubstr("has no \"text_config\""));
}

TEST(HfFamilies, RotateAsTheirConfigsSay) {
  const auto dims = [](const HfConfig& config) {
    return config.metadata.number(fmt::format("{}.rope.dimension_count", config.family->architecture));
  };
  EXPECT_EQ(dims(ConfigMaker("minimax_m2").set("num_local_experts", 4).set("rotary_dim", 4).read()), 4u);
  EXPECT_EQ(dims(ConfigMaker("gpt_neox").set("rotary_pct", 0.5).read()), 4u);
  EXPECT_EQ(dims(ConfigMaker("gpt_neox").read()), 2u);
  const HfConfig hunyuan = ConfigMaker("hunyuan_v1_dense")
                               .set("rope_scaling", {{"type", "dynamic"}, {"alpha", 1000.0}, {"factor", 1.0}})
                               .read();
  EXPECT_NEAR(hunyuan.metadata.real("hunyuan-dense.rope.freq_base"), 10000 * std::pow(1000.0, 8.0 / 6), 1);
  const HfConfig exaone =
      ConfigMaker("exaone4").set("sliding_window", 16).set("sliding_window_pattern", "LLLG").read();
  EXPECT_EQ(exaone.metadata.number("exaone4.attention.sliding_window_pattern"), 4u);
}

TEST(HfFamilies, RefuseAbsurdExpertsNamingTheKey) {
  const auto maker = [] { return ConfigMaker("dots1").set("n_routed_experts", 8); };
  EXPECT_THAT(maker().set("num_experts_per_tok", 9).error(), HasSubstr("\"num_experts_per_tok\" is 9 of 8"));
  EXPECT_THAT(maker().set("num_experts_per_tok", 0).error(), HasSubstr("\"num_experts_per_tok\" is 0"));
  EXPECT_THAT(maker().set("n_routed_experts", uint64_t(1) << 40).error(), HasSubstr("1099511627776 experts"));
  EXPECT_THAT(maker().set("n_routed_experts", {8, 4}).error(), HasSubstr("\"n_routed_experts\" differs"));
  EXPECT_THAT(maker().set("moe_intermediate_size", 0).error(), HasSubstr("\"moe_intermediate_size\" is 0"));
  EXPECT_THAT(maker().set("n_shared_experts", 1000).error(), HasSubstr("1000 shared experts"));
  EXPECT_THAT(maker().set("routed_scaling_factor", -1).error(), HasSubstr("\"routed_scaling_factor\" is -1"));
  EXPECT_THAT(maker().set("n_group", 4).error(), HasSubstr("has no \"topk_group\""));
}

TEST(HfFamilies, RefuseHeadsThatNoModelHasBeforeTheirFrequenciesAreMade) {
  ConfigMaker wide("llama");
  wide.set("hidden_size", 1 << 24)
      .set("rope_scaling",
           {{"rope_type", "llama3"}, {"factor", 8.0}, {"original_max_position_embeddings", 64}});
  wide.config.erase("head_dim");
  EXPECT_THAT(wide.error(), HasSubstr("\"head_dim\" would be 4194304"));
}

TEST(HfFamilies, RefuseWhatTheyCannotCompute) {
  EXPECT_THAT(ConfigMaker("falcon").set("alibi", true).error(), HasSubstr("\"alibi\" is true"));
  EXPECT_THAT(ConfigMaker("falcon").set("parallel_attn", false).error(), HasSubstr("\"parallel_attn\""));
  EXPECT_THAT(ConfigMaker("olmoe").set("num_experts", 4).set("clip_qkv", 8.0).error(),
              HasSubstr("\"clip_qkv\" is not supported"));
  EXPECT_THAT(ConfigMaker("dots1")
                  .set("layer_types", {"full_attention", "full_attention", "full_attention", "full_attention",
                                       "full_attention", "sliding_attention"})
                  .set("sliding_window", 16)
                  .error(),
              HasSubstr("windows are not supported for dots1"));
  EXPECT_THAT(ConfigMaker("cohere2").set("layer_types", {"full_attention"}).set("sliding_window", 4).error(),
              HasSubstr("\"layer_types\" has 1 values for 6 layers"));
  EXPECT_THAT(ConfigMaker("gpt_neox").set("hidden_act", "gelu_fast").error(), HasSubstr("only gelu is"));
}

TEST(HfFamilies, SayHowScoresFallWithTheDistance) {
  ConfigMaker mpt("mpt");
  mpt.config = {{"model_type", "mpt"}, {"vocab_size", 64}, {"d_model", 48}, {"n_heads", 6}, {"n_layers", 2}};
  mpt.set("attn_config", {{"alibi_bias_max", 16}, {"softmax_scale", 0.5}, {"clip_qkv", nullptr}});
  const Metadata& metadata = mpt.read().metadata;
  EXPECT_EQ(metadata.number("mpt.feed_forward_length"), 192u);
  EXPECT_EQ(metadata.number("mpt.context_length"), 2048u);
  EXPECT_EQ(metadata.real("mpt.attention.max_alibi_bias"), 16);
  EXPECT_EQ(metadata.real("mpt.attention.scale"), 0.5);
  for (const Json& other : {Json{{"clip_qkv", 6.0}}, Json{{"alibi", false}}, Json{{"qk_ln", true}}})
    EXPECT_THAT(mpt.set("attn_config", other).error(), HasSubstr("not supported"));

  ConfigMaker bloom("bloom");
  bloom.config = {
      {"model_type", "bloom"}, {"vocab_size", 64}, {"n_embed", 48}, {"n_head", 6}, {"n_layer", 2}};
  EXPECT_EQ(bloom.read().metadata.number("bloom.feed_forward_length"), 192u);
  EXPECT_THAT(bloom.set("n_head", 5).error(), HasSubstr("does not divide into 5 heads"));
  EXPECT_THAT(bloom.set("apply_residual_connection_post_layernorm", true).error(), HasSubstr("is true"));
}

TEST(HfFamilies, AverageExpertsAndRefuseOtherSums) {
  const auto cohere = [] {
    return ConfigMaker("cohere2_moe")
        .set("num_experts", 8)
        .set("num_shared_experts", 2)
        .set("prefix_dense_intermediate_size", 40)
        .set("sliding_window", 16)
        .set("mlp_layer_types", {"dense", "sparse", "sparse", "sparse", "sparse", "sparse"})
        .set("expert_selection_fn", "sigmoid");
  };
  const Metadata& metadata = cohere().read().metadata;
  EXPECT_EQ(metadata.number("cohere2moe.feed_forward_length"), 40u);
  EXPECT_EQ(metadata.number("cohere2moe.leading_dense_block_count"), 1u);
  EXPECT_EQ(metadata.number("cohere2moe.expert_shared_feed_forward_length"), 32u);
  EXPECT_EQ(metadata.number("cohere2moe.expert_gating_func"), 2u);
  EXPECT_THAT(cohere().set("shared_expert_combination_strategy", "sum").error(),
              HasSubstr("known is average"));
  EXPECT_THAT(cohere().set("expert_selection_fn", "tanh").error(), HasSubstr("softmax and sigmoid"));
  EXPECT_THAT(cohere().set("prefix_dense_sliding_window_pattern", 2).error(),
              HasSubstr("windows in the dense"));
}

// As its first files have it: which layers have a window, and which experts, are lists of numbers.
TEST(HfFamilies, ReadBothFormsOfMiMo) {
  ConfigMaker mimo("mimo_v2_flash");
  mimo.set("head_dim", 24).set("v_head_dim", 16).set("num_key_value_heads", 1).set("n_routed_experts", 8);
  mimo.set("hybrid_layer_pattern", {0, 1, 1, 1, 1, 0}).set("moe_layer_freq", {0, 1, 1, 1, 1, 1});
  mimo.set("sliding_window_size", 128).set("swa_rope_theta", 10000).set("rope_theta", 5000000);
  mimo.set("attention_value_scale", 0.707).set("routed_scaling_factor", nullptr);
  const Metadata& metadata = mimo.read().metadata;
  EXPECT_EQ(metadata.maybe_numbers("mimo2.attention.head_count_kv", 6),
            (std::vector<uint64_t>{1, 2, 2, 2, 2, 1}));
  EXPECT_EQ(metadata.number("mimo2.attention.value_length"), 16u);
  EXPECT_EQ(metadata.number("mimo2.attention.sliding_window"), 129u);
  EXPECT_EQ(metadata.number("mimo2.rope.dimension_count"), 8u);
  EXPECT_EQ(metadata.number("mimo2.leading_dense_block_count"), 1u);
  EXPECT_EQ(metadata.real("mimo2.attention.value_scale"), 0.707);
  EXPECT_THAT(mimo.set("hybrid_layer_pattern", {0, 1}).error(), HasSubstr("are said of 2 layers"));
}

TEST(HfFamilies, ReadGatesOfHeadsAndOfValues) {
  const auto laguna = [] {
    ConfigMaker maker("laguna");
    maker.set("num_experts", 8)
        .set("shared_expert_intermediate_size", 24)
        .set("moe_routed_scaling_factor", 2.5);
    maker.set("num_attention_heads_per_layer", {4, 6, 6, 4, 4, 4}).set("sliding_window", 16);
    maker.set("layer_types", {"full_attention", "sliding_attention", "sliding_attention", "full_attention",
                              "full_attention", "full_attention"});
    return maker;
  };
  const Metadata metadata = laguna().read().metadata;
  EXPECT_EQ(metadata.maybe_numbers("laguna.attention.head_count", 6),
            (std::vector<uint64_t>{4, 6, 6, 4, 4, 4}));
  EXPECT_EQ(metadata.number("laguna.rope.dimension_count"), 4u);  // half of a head
  EXPECT_EQ(metadata.number("laguna.rope.dimension_count_swa"), 8u);
  EXPECT_EQ(metadata.real("laguna.expert_weights_scale"), 2.5);
  EXPECT_FALSE(*metadata.maybe_flag("quire.attention.gate_of_values"));
  EXPECT_TRUE(
      *laguna().set("gating", "per-element").read().metadata.maybe_flag("quire.attention.gate_of_values"));
  EXPECT_THAT(laguna().set("gating", "per-layer").error(), HasSubstr("per-head and per-element"));
  EXPECT_THAT(laguna().set("gating", false).error(), HasSubstr("\"gating\" is false"));
  EXPECT_THAT(laguna().set("num_attention_heads_per_layer", {4, 6}).error(), HasSubstr("speaks of 2 layers"));
  EXPECT_THAT(laguna().set("num_attention_heads_per_layer", {4, 0, 6, 4, 4, 4}).error(), HasSubstr("has 0"));
  EXPECT_THAT(laguna().set("moe_router_logit_softcapping", 4.0).error(),
              HasSubstr("moe_router_logit_softcapping"));
  EXPECT_THAT(laguna().set("moe_apply_router_weight_on_input", true).error(),
              HasSubstr("moe_apply_router_weight_on_input"));
}

TEST(HfFamilies, TakeFactorsOfQueriesForWeightsOfTheirNorm) {
  const auto muse = [] { return ConfigMaker("muse_glimmer_text").set("qk_scale_factor", 2.5); };
  const HfConfig config = muse().read();
  ASSERT_EQ(config.computed_tensors.size(), 12u);
  EXPECT_EQ(config.computed_tensors[2].first, "blk.1.attn_q_norm.weight");
  EXPECT_EQ(config.computed_tensors[2].second, std::vector<float>(8, 2.5f));
  EXPECT_EQ(config.computed_tensors[3].second, std::vector<float>(8, 1.0f));
  EXPECT_EQ(config.metadata.flags("muse-glimmer.attention.sliding_window_pattern"),
            (std::vector<bool>{true, false, true, true, true, false}));
  EXPECT_EQ(config.metadata.real("muse-glimmer.final_logit_softcapping"), 20);
  EXPECT_EQ(config.metadata.real("quire.post_norm_epsilon"), 1e-8);
  EXPECT_THAT(muse().set("layer_rope_theta", {0, 0, 1, 1, 1, 0}).error(),
              HasSubstr("layers with a window rotate"));
  EXPECT_THAT(muse().set("layer_rope_theta", {1, 0}).error(), HasSubstr("speaks of 2 layers"));
  EXPECT_THAT(muse().set("qk_scale_factor", 0).error(), HasSubstr("qk_scale_factor"));
}

// What a spec is read from: the head of a file that has only an embedding.
class ConfigHead : public ModelFile {
 public:
  explicit ConfigHead(const HfConfig& config) : ModelFile("head") {
    metadata_ = config.metadata;
    const uint64_t rows = metadata_.number(metadata_.text("general.architecture") + ".vocab_size");
    add_tensor({"token_embd.weight", DType::f32, {rows, config.embedding}, 0});
  }
  TensorData load(const TensorEntry&) const override { return {}; }
  std::vector<std::span<const std::byte>> stored(const TensorEntry&) const override { return {}; }
};

// Whether it becomes a spec. Anything but an Error ends the test.
bool becomes_a_spec(const Json& config) {
  try {
    HfConfig converted = convert_hf_config(reread(config), "model");
    if (converted.family->architecture == "apertus") {  // its activation is in its tensors
      for (const char* key : {"xielu.alpha_p", "xielu.alpha_n", "xielu.beta"})
        converted.metadata.set(key, std::vector<double>(converted.layers, 0.5));
    }
    const ModelSpec spec = read_model_spec(ConfigHead(converted));
    return spec.layers.size() == converted.layers;
  } catch (const Error& error) {
    return false;
  }
}

// Of heads that are no power of two the others stand between the first ones.
TEST(HfFamilies, HaveSlopesForAnyNumberOfHeads) {
  ConfigMaker bloom("bloom");
  bloom.config = {
      {"model_type", "bloom"}, {"vocab_size", 64}, {"n_embed", 48}, {"n_head", 6}, {"n_layer", 2}};
  const ModelSpec spec = read_model_spec(ConfigHead(bloom.read()));
  EXPECT_EQ(spec.layers[1].gqa().slopes,
            (std::vector<float>{0.25f, 0.0625f, 0.015625f, 0.00390625f, 0.5f, 0.125f}));
  EXPECT_FALSE(spec.layers[1].gqa().rope);
  EXPECT_TRUE(spec.embedding_norm);
}

// `config` itself where the model is nested, and every object below.
void for_each_value(Json& config, Json& object, const std::function<void(const std::string& key)>& visit) {
  for (auto& [key, value] : object.items()) {
    if (value.is_object()) for_each_value(config, value, visit);
    const Json before = value;
    for (const Json& hostile :
         {Json(0), Json(-1), Json(uint64_t(1) << 60), Json(1e300), Json("x"), Json(true), Json::array(),
          Json({1, 0, 70000}), Json::object(), Json(nullptr)}) {
      value = hostile;
      visit(key);
    }
    value = before;
  }
}

TEST(HfFamilies, SurviveEveryHostileValueOfEveryKey) {
  size_t tried = 0;
  for (const auto& file : std::filesystem::directory_iterator(QUIRE_SOURCE_DIR "/tests/corpus/hf_config")) {
    Json config = parse_json(TestFolder::read(file.path().string()), "config.json");
    EXPECT_TRUE(becomes_a_spec(config)) << file.path();
    for_each_value(config, config, [&](const std::string&) {
      becomes_a_spec(config);
      ++tried;
    });
  }
  EXPECT_GT(tried, 1000u);
}

}  // namespace
}  // namespace quire
