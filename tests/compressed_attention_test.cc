// DeepSeek V4, whose layers keep rows of several tokens: what they cost, that they are found again wherever a text parts, and what is refused.
// That they compute what Transformers does is shown by its golden, and that nothing else shows by the invariance tests.
#include <gmock/gmock.h>

#include "base/error.h"
#include "base/json.h"
#include "engine/memory_plan.h"
#include "layers_case.h"
#include "model/hf_config.h"
#include "model/refusal.h"
#include "model/synth.h"
#include "model/type_mix.h"

namespace quire {
namespace {

using testing::HasSubstr;

std::string error_from(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(CompressedAttention, KeepsTheBytesOfATokenThatItsMeasuresSay) {
  const auto layout_of = [](const char* shape) {
    const std::unique_ptr<ModelFile> file = synth_head(synth_shape(shape), TypeMix("q8_0"));
    return make_kv_layout(kv_shapes(read_model_spec(*file), KvFormat::f16));
  };
  const KvLayout flash = layout_of("deepseek-v4-flash");
  EXPECT_EQ(lasting_bytes_per_token(flash), 6880u);
  EXPECT_EQ(lasting_bytes_per_token(layout_of("deepseek-v4-pro")), 9848u);
  EXPECT_EQ(flash.node_tokens, 128u);
  // Of a token that windows still see: a row of every layer, and what rows of 4 and 128 tokens are made of.
  size_t rows = 0, made_of = 0;
  for (const KvGroupLayout& group : flash.groups) {
    for (const KvLayerLayout& layer : group.layers) {
      const size_t bytes = (layer.key_row_bytes + layer.value_row_bytes) * group.window;
      if (group.window > 0) (layer.shape.own_format ? made_of : rows) += bytes;
    }
  }
  EXPECT_EQ(rows, 43u * 512 * 2 * 128);  // 5.6 MB for a sequence
  EXPECT_EQ(made_of, size_t(21) * 8 * 2 * 2 * (512 + 128) * 4 + size_t(20) * 128 * 2 * 512 * 4);  // 12.2 MB
  EXPECT_EQ(lasting_bytes_per_token(layout_of("deepseek-v3.2")), 85888u);
}

// 290 tokens, of which others have the first so many.
std::vector<TokenId> text_of(uint32_t same, uint32_t which) {
  std::vector<TokenId> tokens(290);
  for (uint32_t i = 0; i < tokens.size(); ++i)
    tokens[i] = TokenId(3 + (i * i * 7 + i * 5 + (i < same ? 0 : 11 * which)) % 29);
  return tokens;
}

TEST(CompressedAttention, GoesOnWhereverTextsPart) {
  BareModel model(golden_folder("deepseek_v4"), exact_kernels(), 2);
  EngineOptions options{.context = 512, .max_sequences = 4, .prefill_chunk = 50};
  options.page_tokens = 16;
  const auto ask = [](Engine& engine, uint32_t same, uint32_t which) {
    Request request;
    request.prompt = text_of(same, which);
    request.max_tokens = 6;
    request.logprobs = true;
    request.sampling.temperature = 0;
    const Answer answer = engine.run(request);
    return std::pair(answer.tokens, answer.logprobs);
  };
  Engine shared(model.engine_model(), options);
  ask(shared, 290, 0);
  uint32_t inside = 0;  // that were found in the middle of a row of 128 tokens
  for (const uint32_t same : {289u, 270u, 257u, 256u, 255u, 131u, 128u, 100u, 7u}) {
    options.sharing = false;
    Engine alone(model.engine_model(), options);
    const size_t found = shared.lookup(text_of(same, same)).tokens;
    EXPECT_GE(found, same / 128 * 128) << "a node is of 128 tokens";
    EXPECT_LE(found, same);
    inside += found % 128 != 0 ? 1 : 0;
    EXPECT_EQ(ask(shared, same, same), ask(alone, same, same)) << "after " << same << " tokens";
    shared.kv().check_invariants();
  }
  EXPECT_GT(inside, 1u);
}

TEST(CompressedAttention, AbsurdKeysAreRefusedByName) {
  const auto error_of = [](const std::string& key, MetadataValue value) {
    Metadata metadata = small_compressed();
    metadata.set("deepseek4." + key, std::move(value));
    return error_from([&] { make(metadata); });
  };
  EXPECT_EQ(error_of("attention.compress_ratios", std::vector<uint64_t>{0, 4, 128, 4, 0}), "no error");
  for (const char* key :
       {"attention.q_lora_rank", "attention.output_group_count", "attention.output_lora_rank",
        "attention.sliding_window", "attention.indexer.head_count", "attention.indexer.key_length",
        "attention.indexer.top_k", "hyper_connection.count", "hyper_connection.sinkhorn_iterations",
        "rope.dimension_count"}) {
    for (const uint64_t value : {uint64_t(0), uint64_t(1) << 30, uint64_t(1) << 40})
      EXPECT_THAT(error_of(key, value), HasSubstr(key)) << value;
  }
  EXPECT_THAT(error_of("attention.compress_ratios", std::vector<uint64_t>{0, 4, 128}),
              HasSubstr("of 3 layers"));
  EXPECT_THAT(error_of("attention.compress_ratios", std::vector<uint64_t>{0, 4, 5, 4}),
              HasSubstr("compress_ratios has 5"));
  EXPECT_THAT(error_of("attention.output_group_count", uint64_t(3)), HasSubstr("of 4 heads"));
  EXPECT_THAT(error_of("attention.head_count_kv", uint64_t(2)), HasSubstr("head_count_kv is 2"));
  EXPECT_THAT(error_of("attention.value_length", uint64_t(12)), HasSubstr("a row is both"));
  EXPECT_THAT(error_of("attention.indexer.key_length", uint64_t(10)), HasSubstr("multiples of four"));
  EXPECT_THAT(error_of("swiglu_clamp_exp", std::vector<double>{0.5, 0.5, -1.0, 0.5}),
              HasSubstr("swiglu_clamp_exp is -1"));
  EXPECT_THAT(error_of("swiglu_clamp_exp", std::vector<double>{0.5}),
              HasSubstr("swiglu_clamp_exp speaks of 1"));
  EXPECT_THAT(error_of("attention.compress_rope_freq_base", -1.0), HasSubstr("compress_rope_freq_base"));
  EXPECT_THAT(error_of("hyper_connection.epsilon", 2.0), HasSubstr("hyper_connection.epsilon"));
  EXPECT_THAT(error_of("expert_count", uint64_t(0)), HasSubstr("expert_count"));
}

TEST(CompressedAttention, LayersThatPredictFurtherTokensMayBeCountedOrNot) {
  Metadata metadata = small_compressed();
  metadata.set("deepseek4.nextn_predict_layers", uint64_t(1));
  EXPECT_THAT(error_from([&] { make(metadata); }), HasSubstr("deepseek4.nextn_predict_layers"));
  metadata.set("deepseek4.attention.compress_ratios", std::vector<uint64_t>{0, 4, 128, 4, 0});
  const std::shared_ptr<MadeFile> file = make(metadata);
  EXPECT_EQ(file->spec().layers.size(), 4u);
  EXPECT_THAT(error_from([&] { read_predictor_spec(*file); }), HasSubstr("predict further tokens"));
}

TEST(CompressedAttention, ExpertsOfTokensThatAreNotThereAreRefused) {
  const std::shared_ptr<MadeFile> file = make(small_compressed());
  EXPECT_EQ(error_from([&] { load_weights(file, file->spec()); }), "no error");
  std::vector<float> bits(40 * 2);
  for (const int32_t wrong : {6, -1, 1 << 30}) {
    bits[31] = std::bit_cast<float>(wrong);
    file->set("blk.0.ffn_gate_tid2eid.weight", bits);
    EXPECT_THAT(
        error_from([&] { load_weights(file, file->spec()); }),
        HasSubstr(fmt::format("blk.0.ffn_gate_tid2eid.weight has {} in row 15, and there are 6", wrong)));
  }
}

Json v4_config() {
  return {{"model_type", "deepseek_v4"},
          {"hidden_size", 32},
          {"moe_intermediate_size", 16},
          {"num_hidden_layers", 4},
          {"vocab_size", 64},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 1},
          {"head_dim", 16},
          {"qk_rope_head_dim", 4},
          {"q_lora_rank", 12},
          {"o_groups", 2},
          {"o_lora_rank", 8},
          {"sliding_window", 10},
          {"compress_ratios", {0, 4, 128, 4, 0}},
          {"compress_rope_theta", 160000},
          {"rope_theta", 10000},
          {"rope_scaling",
           {{"type", "yarn"},
            {"factor", 16},
            {"beta_fast", 32},
            {"beta_slow", 1},
            {"original_max_position_embeddings", 65536}}},
          {"index_n_heads", 8},
          {"index_head_dim", 8},
          {"index_topk", 5},
          {"n_routed_experts", 6},
          {"n_shared_experts", 1},
          {"num_experts_per_tok", 2},
          {"num_hash_layers", 1},
          {"num_nextn_predict_layers", 1},
          {"routed_scaling_factor", 1.5},
          {"scoring_func", "sqrtsoftplus"},
          {"swiglu_limit", 10.0},
          {"max_position_embeddings", 1048576}};
}

HfConfig converted(const Json& config) {
  return convert_hf_config({parse_json(config.dump(), "config.json"), "config.json"}, "model");
}

TEST(CompressedAttention, ConfigsAsTheyArePublishedAreRead) {
  const Metadata metadata = converted(v4_config()).metadata;
  EXPECT_EQ(metadata.integers("deepseek4.attention.compress_ratios"), (std::vector<int64_t>{0, 4, 128, 4}));
  EXPECT_EQ(metadata.number("deepseek4.hash_layer_count"), 1u);
  EXPECT_EQ(metadata.number("deepseek4.expert_gating_func"), 4u);
  EXPECT_EQ(metadata.number("deepseek4.rope.dimension_count"), 4u);
  EXPECT_EQ(metadata.real("deepseek4.attention.compress_rope_freq_base"), 160000);
  EXPECT_EQ(metadata.real("deepseek4.rope.freq_base"), 10000);
  EXPECT_EQ(metadata.real("deepseek4.rope.scaling.factor"), 16);
  EXPECT_FALSE(metadata.has("quire.rope.attention_factor"));
}

TEST(CompressedAttention, AbsurdConfigsAreRefusedByName) {
  const auto error_of = [](const char* key, Json value) {
    Json config = v4_config();
    config[key] = std::move(value);
    return error_from([&] { converted(config); });
  };
  for (const char* key :
       {"head_dim", "q_lora_rank", "o_groups", "o_lora_rank", "index_n_heads", "index_head_dim", "index_topk",
        "hc_mult", "hc_sinkhorn_iters", "num_attention_heads", "qk_rope_head_dim"}) {
    EXPECT_THAT(error_of(key, 0), HasSubstr(key));
    EXPECT_THAT(error_of(key, 1 << 20), HasSubstr(key));
    EXPECT_THAT(error_of(key, "many"), HasSubstr(key));
  }
  EXPECT_THAT(error_of("compress_ratios", {0, 4, 8, 4}), HasSubstr("\"compress_ratios\" has 8"));
  EXPECT_THAT(error_of("compress_ratios", {0, 4}), HasSubstr("\"compress_ratios\" speaks of 2 layers"));
  EXPECT_THAT(error_of("layer_types", {"sliding_attention", "full_attention"}),
              HasSubstr("\"full_attention\""));
  EXPECT_THAT(error_of("compress_rate_csa", 8), HasSubstr("no error"));  // "compress_ratios" says it
  EXPECT_THAT(error_of("mlp_layer_types", {"moe", "hash_moe", "moe", "moe"}),
              HasSubstr("hash_moe behind moe"));
  EXPECT_THAT(error_of("mlp_layer_types", {"moe", "dense", "moe", "moe"}), HasSubstr("\"dense\""));
  EXPECT_THAT(error_of("scoring_func", "entmax"), HasSubstr("\"entmax\""));
  EXPECT_THAT(error_of("attention_bias", true), HasSubstr("attention_bias"));
  EXPECT_THAT(error_of("swiglu_limit", -1), HasSubstr("swiglu_limit"));
  EXPECT_THAT(error_of("hc_eps", 2), HasSubstr("hc_eps"));
  EXPECT_THAT(error_of("qk_rope_head_dim", 3), HasSubstr("\"qk_rope_head_dim\" is 3"));
  EXPECT_THAT(error_of("rope_scaling", {{"type", "linear"}, {"factor", 2}}), HasSubstr("\"linear\""));
}

TEST(CompressedAttention, DevicesWithoutItsKernelsRefuseIt) {
  const auto file = make(small_compressed());
  BackendTraits device;
  device.device = "cuda:0";
  EXPECT_EQ(refusal_of(*file, file->spec(), device), "");
  device.limits.side_streams = false;
  EXPECT_THAT(refusal_of(*file, file->spec(), device), HasSubstr("several residual streams"));
  device.limits = {.compressed_rows = false};
  EXPECT_THAT(refusal_of(*file, file->spec(), device),
              HasSubstr("layer 0 attends to rows of several tokens"));
  device.limits = {.experts_by_token = false};
  EXPECT_THAT(refusal_of(*file, file->spec(), device), HasSubstr("experts that a token's number names"));
}

}  // namespace
}  // namespace quire
