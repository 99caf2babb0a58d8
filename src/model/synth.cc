#include "model/synth.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"
#include "base/philox.h"
#include "model/gguf_writer.h"
#include "model/layer_blocks.h"
#include "model/synth_vocabulary.h"
#include "tensor/quantize.h"

namespace quire {
namespace {

constexpr size_t kDistinctRows = 64;

// Of all matrices of a tensor together.
size_t all_rows(const TensorEntry& tensor) {
  size_t rows = 1;
  for (size_t i = 0; i + 1 < tensor.shape.size(); ++i) rows *= tensor.shape[i];
  return rows;
}

Metadata synth_metadata(const SynthShape& s, const TypeMix& mix) {
  Metadata metadata(s.name);
  metadata.set("general.architecture", s.architecture);
  metadata.set("general.name", "synthetic " + s.name);
  metadata.set("general.file_type", uint64_t(mix.file_type()));
  metadata.set("general.quantization_version", uint64_t(2));
  const auto set = [&](const std::string& key, MetadataValue value) {
    metadata.set(s.architecture + "." + key, std::move(value));
  };
  set("block_count", uint64_t(s.layers));
  set("context_length", uint64_t(s.context));
  set("embedding_length", uint64_t(s.dim));
  set("feed_forward_length", uint64_t(s.mlp_width));
  set("attention.head_count", uint64_t(s.heads));
  set("attention.head_count_kv", uint64_t(s.kv_heads));
  set("attention.key_length", uint64_t(s.head_dim));
  set("attention.value_length", uint64_t(s.head_dim));
  set("attention.layer_norm_rms_epsilon", 1e-5);
  set("rope.dimension_count", uint64_t(s.head_dim));
  set("rope.freq_base", double(s.rope_base));
  set("vocab_size", uint64_t(s.vocab));
  for (const auto& [key, value] : s.more) set(key, value);
  set_vocabulary(make_synth_vocabulary(s.vocab), metadata);
  return metadata;
}

class SynthHead : public ModelFile {
 public:
  SynthHead(const SynthShape& shape, const TypeMix& mix) : ModelFile(shape.name) {
    metadata_ = synth_metadata(shape, mix);
    const auto add = [&](const Role& role) {
      TensorEntry tensor{role.tensor, role.below > 0 ? DType::i32 : DType::f32, role.shape, 0};
      tensor.dtype = mix.type_for(tensor, shape.layers, shape.tied);
      tensor.bytes = all_rows(tensor) * row_bytes(tensor.dtype, tensor.shape.back());
      add_tensor(std::move(tensor));
    };
    ModelSpec measures;  // what a spec is read from must have an embedding
    measures.vocab = shape.vocab;
    measures.dim = shape.dim;
    const Role embedding = model_roles(measures).embedding;
    add(embedding);
    for (const Role& role : all_roles(read_model_spec(*this))) {
      const bool wanted = role.presence == Presence::required || (role.name == "head" && !shape.tied);
      if (wanted && role.tensor != embedding.tensor) add(role);
    }
  }
  TensorData load(const TensorEntry&) const override {
    throw Error("{} is a shape: it has no weights", path_);
  }
  std::vector<std::span<const std::byte>> stored(const TensorEntry&) const override { return {}; }
};

// Gaussian values keyed by tensor, row and place.
void fill_row(uint32_t tensor, uint32_t row, float scale, std::span<float> out) {
  for (uint32_t i = 0; i < out.size(); ++i) {
    const auto random = philox({i, row, tensor, 0}, {0x71756972, 0x65});
    const double radius = std::sqrt(-2 * std::log((double(random[0]) + 0.5) * 0x1p-32));
    out[i] = scale * float(radius * std::cos(2 * std::numbers::pi * double(random[1]) * 0x1p-32));
  }
}

using Keys = std::vector<std::pair<std::string, MetadataValue>>;

Keys experts(uint64_t count, uint64_t used, uint64_t width, Keys more) {
  more.push_back({"expert_count", count});
  more.push_back({"expert_used_count", used});
  more.push_back({"expert_feed_forward_length", width});
  return more;
}

Keys with(Keys keys, const char* key, uint64_t value) {
  keys.push_back({key, value});
  return keys;
}

// Layers that keep latent rows. Of heads what is not rotated, what is, and what they give.
struct LatentHeads {
  uint64_t query_rank, rank, plain, rotated, value;
};
Keys latent(const LatentHeads& heads, Keys more) {
  more.push_back({"attention.key_length", heads.rank + heads.rotated});
  more.push_back({"attention.value_length", heads.rank});
  more.push_back({"attention.key_length_mla", heads.plain + heads.rotated});
  more.push_back({"attention.value_length_mla", heads.value});
  more.push_back({"attention.kv_lora_rank", heads.rank});
  if (heads.query_rank > 0) more.push_back({"attention.q_lora_rank", heads.query_rank});
  more.push_back({"rope.dimension_count", heads.rotated});
  more.push_back({"expert_shared_count", uint64_t(1)});
  return more;
}

// Scores are sigmoids, the first layers dense.
Keys v3_routing(uint64_t dense, double scale, uint64_t groups, uint64_t groups_used) {
  return {{"leading_dense_block_count", dense}, {"expert_gating_func", uint64_t(2)},
          {"expert_weights_norm", true},        {"expert_weights_scale", scale},
          {"expert_group_count", groups},       {"expert_group_used_count", groups_used}};
}

Keys yarn(Keys keys, double factor, uint64_t original, double multiplier) {
  keys.push_back({"rope.scaling.type", std::string("yarn")});
  keys.push_back({"rope.scaling.factor", factor});
  keys.push_back({"rope.scaling.original_context_length", original});
  keys.push_back({"rope.scaling.yarn_log_multiplier", multiplier});
  return keys;
}

// Three of four layers are gated delta nets; of a head of the others so many dimensions rotate.
Keys recurrence(uint64_t key_heads, uint64_t value_heads, uint64_t head_dim, uint64_t rotated) {
  return {{"full_attention_interval", uint64_t(4)},
          {"ssm.conv_kernel", uint64_t(4)},
          {"ssm.group_count", key_heads},
          {"ssm.time_step_rank", value_heads},
          {"ssm.state_size", head_dim},
          {"ssm.inner_size", value_heads * head_dim},
          {"rope.dimension_count", rotated}};
}

// Layers of Mamba-2 of heads of 64 or so values.
Keys state_space(uint64_t heads, uint64_t head_dim, uint64_t groups, Keys more) {
  more.push_back({"ssm.conv_kernel", uint64_t(4)});
  more.push_back({"ssm.time_step_rank", heads});
  more.push_back({"ssm.inner_size", heads * head_dim});
  more.push_back({"ssm.group_count", groups});
  more.push_back({"ssm.state_size", uint64_t(128)});
  return more;
}

// An index that chooses rows.
Keys indexed(uint64_t heads, uint64_t key_dim, uint64_t most, Keys keys) {
  keys = with(std::move(keys), "attention.indexer.head_count", heads);
  keys = with(std::move(keys), "attention.indexer.key_length", key_dim);
  return with(std::move(keys), "attention.indexer.top_k", most);
}

// An index that chooses blocks of rows, in all layers but the first, which have no experts.
Keys block_indexed(uint64_t heads, uint64_t key_dim, uint64_t block, uint64_t most, uint64_t dense) {
  Keys keys = indexed(heads, key_dim, most,
                      {{"leading_dense_block_count", dense},
                       {"expert_gating_func", uint64_t(2)},
                       {"expert_shared_count", uint64_t(1)},
                       {"expert_weights_scale", 2.0},
                       {"rope.dimension_count", uint64_t(64)}});
  keys = with(std::move(keys), "attention.indexer.block_size", block);
  return with(std::move(keys), "attention.indexer.local_blocks", 1);
}

// DeepSeek V4: rows of 512 values, 64 of which rotate, and of 4 or 128 tokens beside a window of 128; `ratios` of its layers.
struct V4Heads {
  uint64_t query_rank, groups, group_rank, rotated, window, index_heads, index_dim, index_most;
};
Keys v4(const V4Heads& heads, std::vector<uint64_t> ratios, double scale) {
  Keys keys = {{"attention.q_lora_rank", heads.query_rank},
               {"attention.output_group_count", heads.groups},
               {"attention.output_lora_rank", heads.group_rank},
               {"attention.sliding_window", heads.window},
               {"attention.compress_ratios", ratios},
               {"attention.compress_rope_freq_base", 160000.0},
               {"rope.dimension_count", heads.rotated},
               {"rope.scaling.type", std::string("yarn")},
               {"rope.scaling.factor", 16.0},
               {"rope.scaling.original_context_length", uint64_t(65536)},
               {"expert_gating_func", uint64_t(4)},
               {"expert_weights_norm", true},
               {"expert_weights_scale", scale},
               {"expert_shared_count", uint64_t(1)},
               {"hash_layer_count", uint64_t(std::min<size_t>(3, ratios.size() / 2))},
               {"swiglu_clamp_exp", std::vector<double>(ratios.size(), 10.0)},
               {"hyper_connection.count", uint64_t(4)},
               {"hyper_connection.sinkhorn_iterations", uint64_t(20)},
               {"hyper_connection.epsilon", 1e-6}};
  return indexed(heads.index_heads, heads.index_dim, heads.index_most, std::move(keys));
}

// The first two layers, and then 4 and 128 in turn.
std::vector<uint64_t> v4_ratios(size_t layers, uint64_t first) {
  std::vector<uint64_t> ratios(layers, first);
  for (size_t l = 2; l < layers; ++l) ratios[l] = l % 2 == 0 ? 4 : 128;
  return ratios;
}

// A number for each letter of a pattern: `value` where it is that letter, else 0.
std::vector<uint64_t> where(std::string_view pattern, char letter, uint64_t value) {
  std::vector<uint64_t> values;
  for (const char each : pattern) values.push_back(each == letter ? value : 0);
  return values;
}

constexpr std::string_view kLfm2 = "cc*cc*cc*c*c*c*c";
constexpr std::string_view kGraniteTiny = "MMMMM*MMMMMMMMM*MMMMMMMMM*MMMMMMMMM*MMMM";
constexpr std::string_view kNemotronNano = "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-";

// Of six layers five have a window and heads of another size; the last `shared` layers have no keys and values of their own.
Keys gemma4(uint64_t window_dim, uint64_t window, uint64_t shared, uint64_t input) {
  return {{"attention.key_length_swa", window_dim},
          {"attention.value_length_swa", window_dim},
          {"attention.sliding_window", window},
          {"attention.sliding_window_pattern", uint64_t(6)},
          {"attention.shared_kv_layers", shared},
          {"attention.keys_are_values", false},
          {"embedding_length_per_layer_input", input},
          {"rope.dimension_count_swa", window_dim},
          {"final_logit_softcapping", 30.0}};
}

// The same without inputs, whose layers without a window have few heads and values that are their keys.
Keys gemma4_of_keys(size_t layers, uint64_t kv_heads, uint64_t full_heads, uint64_t window_dim,
                    uint64_t window) {
  Keys keys = gemma4(window_dim, window, 0, 0);
  std::vector<uint64_t> heads(layers, kv_heads);
  for (size_t l = 5; l < layers; l += 6) heads[l] = full_heads;
  keys.push_back({"attention.head_count_kv", heads});
  for (auto& [key, value] : keys)
    if (key == "attention.keys_are_values") value = true;
  return keys;
}

// Of five layers four have a window; the last `shared` have no keys and values of their own.
Keys gemma3n(uint64_t shared) {
  return {{"attention.sliding_window", uint64_t(512)},
          {"attention.sliding_window_pattern", uint64_t(5)},
          {"attention.shared_kv_layers", shared},
          {"altup.num_inputs", uint64_t(4)},
          {"embedding_length_per_layer_input", uint64_t(256)},
          {"final_logit_softcapping", 30.0}};
}

// Norms, but for what says how fast a state forgets: over some tens of tokens.
float one_value_of(const std::string& tensor) {
  if (tensor.ends_with(".ssm_a")) return -0.05f;
  return tensor.ends_with(".ssm_dt.bias") ? -1.0f : 1.0f;
}

}  // namespace

const std::vector<SynthShape>& synth_shapes() {
  static const std::vector<SynthShape> shapes = {
      {"tiny", 256, 4, 4, 2, 64, 512, 512, 2048, true, 10000},
      {"smollm-135m", 576, 30, 9, 3, 64, 1536, 49152, 8192, true, 100000},
      {"smollm-360m", 960, 32, 15, 5, 64, 2560, 49152, 8192, true, 100000},
      {"llama-1b", 2048, 16, 32, 8, 64, 8192, 128256, 131072, true, 500000},
      {"llama-3b", 3072, 28, 24, 8, 128, 8192, 128256, 131072, true, 500000},
      {"llama-8b", 4096, 32, 32, 8, 128, 14336, 128256, 131072, false, 500000},
      {"tiny-hybrid", 256, 8, 4, 2, 64, 512, 512, 8192, true, 10000, "qwen35", recurrence(2, 4, 32, 16)},
      {"hybrid-1b", 2048, 16, 8, 2, 256, 8192, 128256, 131072, true, 1e7f, "qwen35",
       recurrence(16, 16, 128, 64)},
      {"qwen3.5-9b", 4096, 32, 16, 4, 256, 12288, 248320, 262144, false, 1e7f, "qwen35",
       recurrence(16, 32, 128, 64)},
      {"qwen3.5-35b-a3b", 2048, 40, 16, 2, 256, 512, 248320, 262144, false, 1e7f, "qwen35moe",
       experts(256, 8, 512, with(recurrence(16, 32, 128, 64), "expert_shared_feed_forward_length", 512))},
      {"qwen3-next-80b-a3b", 2048, 48, 16, 2, 256, 5120, 151936, 262144, false, 1e7f, "qwen3next",
       experts(512, 10, 512, with(recurrence(16, 32, 128, 64), "expert_shared_feed_forward_length", 512))},
      {"lfm2-1.2b",
       2048,
       16,
       32,
       8,
       64,
       8192,
       65536,
       128000,
       true,
       1e6f,
       "lfm2",
       {{"shortconv.l_cache", uint64_t(3)}, {"attention.head_count_kv", where(kLfm2, '*', 8)}}},
      {"granite-4-h-tiny", 1536, 40, 12, 4, 128, 512, 100352, 131072, true, 10000, "granitehybrid",
       experts(64, 6, 512,
               state_space(48, 64, 1,
                           {{"attention.head_count_kv", where(kGraniteTiny, '*', 4)},
                            {"expert_shared_feed_forward_length", uint64_t(1024)},
                            {"rope.scaling.finetuned", false},
                            {"embedding_scale", 12.0},
                            {"residual_scale", 0.22},
                            {"logit_scale", 6.0},
                            {"attention.scale", 0.0078125}}))},
      {"nemotron-nano-9b-v2", 4480, 56, 40, 8, 128, 15680, 131072, 131072, false, 10000, "nemotron_h",
       state_space(128, 80, 8,
                   {{"attention.head_count_kv", where(kNemotronNano, '*', 8)},
                    {"feed_forward_length", where(kNemotronNano, '-', 15680)}})},
      {"tiny-lfm2",
       256,
       6,
       4,
       2,
       64,
       512,
       512,
       8192,
       true,
       10000,
       "lfm2",
       {{"shortconv.l_cache", uint64_t(3)}, {"attention.head_count_kv", where("cc*cc*", '*', 2)}}},
      {"tiny-mamba2", 256, 6, 4, 2, 64, 512, 512, 8192, true, 10000, "granitehybrid",
       state_space(
           8, 64, 1,
           {{"attention.head_count_kv", where("MM*MM*", '*', 2)}, {"rope.scaling.finetuned", false}})},
      {"llama-70b", 8192, 80, 64, 8, 128, 28672, 128256, 131072, false, 500000},
      {"llama-13b", 5120, 40, 40, 40, 128, 13824, 32000, 4096, false, 10000},
      {"ministral-3-8b",
       4096,
       34,
       32,
       8,
       128,
       14336,
       131072,
       262144,
       false,
       1e6f,
       "mistral3",
       {{"rope.scaling.type", std::string("yarn")},
        {"rope.scaling.factor", 16.0},
        {"rope.scaling.original_context_length", uint64_t(16384)},
        {"rope.scaling.yarn_log_multiplier", 1.0},
        {"attention.temperature_scale", 0.1}}},
      {"command-r7b",
       4096,
       32,
       32,
       8,
       128,
       14336,
       256000,
       8192,
       true,
       50000,
       "cohere2",
       {{"attention.sliding_window", uint64_t(4096)}, {"logit_scale", 0.25}}},
      {"qwen2-moe", 2048, 24, 16, 16, 128, 5632, 151936, 8192, false, 1e6f, "qwen2moe",
       experts(60, 4, 1408, {{"expert_shared_feed_forward_length", uint64_t(5632)}})},
      {"qwen3-30b-a3b", 2048, 48, 32, 4, 128, 6144, 151936, 40960, false, 1e6f, "qwen3moe",
       experts(128, 8, 768, {})},
      {"qwen3-235b-a22b", 4096, 94, 64, 4, 128, 12288, 151936, 262144, false, 5e6f, "qwen3moe",
       experts(128, 8, 1536, {})},
      {"gpt-oss-20b", 2880, 24, 64, 8, 64, 2880, 201088, 131072, false, 150000, "gpt-oss",
       experts(32, 4, 2880, {{"attention.sliding_window", uint64_t(128)}})},
      {"ernie-4.5-21b-a3b", 2560, 28, 20, 4, 128, 12288, 103424, 131072, true, 500000, "ernie4_5-moe",
       experts(64, 6, 1536,
               {{"expert_shared_count", uint64_t(2)}, {"leading_dense_block_count", uint64_t(1)}})},
      {"glm-4.5-air", 4096, 46, 96, 8, 128, 10944, 151552, 131072, false, 1e6f, "glm4moe",
       experts(128, 8, 1408,
               {{"expert_shared_count", uint64_t(1)},
                {"leading_dense_block_count", uint64_t(1)},
                {"expert_gating_func", uint64_t(2)},
                {"rope.dimension_count", uint64_t(64)}})},
      {"tiny-mla", 256, 4, 4, 1, 48, 512, 512, 8192, true, 10000, "deepseek2",
       experts(8, 2, 128, latent({128, 96, 32, 32, 64}, v3_routing(1, 2.5, 4, 2)))},
      {"v3-lite", 2048, 9, 32, 1, 192, 8192, 32000, 131072, false, 10000, "deepseek2",
       experts(32, 4, 1408, latent({768, 512, 128, 64, 128}, yarn(v3_routing(1, 2.5, 4, 2), 40, 4096, 0.1)))},
      {"deepseek-v2-lite", 2048, 27, 16, 1, 192, 10944, 102400, 163840, false, 10000, "deepseek2",
       experts(64, 6, 1408,
               latent({0, 512, 128, 64, 128}, yarn({{"leading_dense_block_count", uint64_t(1)},
                                                    {"expert_shared_feed_forward_length", uint64_t(2816)}},
                                                   40, 4096, 0.0707)))},
      {"deepseek-v3", 7168, 61, 128, 1, 192, 18432, 129280, 163840, false, 10000, "deepseek2",
       experts(256, 8, 2048,
               latent({1536, 512, 128, 64, 128}, yarn(v3_routing(3, 2.5, 8, 4), 40, 4096, 0.1)))},
      {"tiny-dsa", 256, 3, 4, 1, 48, 512, 512, 8192, true, 10000, "deepseek32",
       experts(8, 2, 128, indexed(16, 32, 64, latent({128, 96, 32, 32, 64}, v3_routing(1, 2.5, 4, 2))))},
      {"deepseek-v3.2", 7168, 61, 128, 1, 192, 18432, 129280, 163840, false, 10000, "deepseek32",
       experts(256, 8, 2048,
               indexed(64, 128, 2048,
                       latent({1536, 512, 128, 64, 128}, yarn(v3_routing(3, 2.5, 8, 4), 40, 4096, 0.1))))},
      {"tiny-v4", 256, 4, 4, 1, 64, 512, 512, 8192, false, 10000, "deepseek4",
       experts(8, 2, 128, v4({128, 2, 64, 16, 64, 16, 32, 32}, v4_ratios(4, 0), 1.5))},
      {"v4-lite", 2048, 9, 32, 1, 512, 8192, 32000, 1048576, false, 10000, "deepseek4",
       experts(32, 4, 1408, v4({768, 8, 512, 64, 128, 32, 128, 512}, v4_ratios(9, 0), 1.5))},
      {"deepseek-v4-flash", 4096, 43, 64, 1, 512, 2048, 129280, 1048576, false, 10000, "deepseek4",
       experts(256, 6, 2048, v4({1024, 8, 1024, 64, 128, 64, 128, 512}, v4_ratios(43, 0), 1.5))},
      {"deepseek-v4-pro", 7168, 61, 128, 1, 512, 3072, 129280, 1048576, false, 10000, "deepseek4",
       experts(384, 6, 3072, v4({1536, 16, 1024, 64, 128, 64, 128, 1024}, v4_ratios(61, 128), 2.5))},
      {"kimi-k2", 7168, 61, 64, 1, 192, 18432, 163840, 131072, false, 50000, "deepseek2",
       experts(384, 8, 2048,
               latent({1536, 512, 128, 64, 128}, yarn(v3_routing(1, 2.827, 1, 1), 32, 4096, 0.1)))},
      {"glm-4.7-flash", 2048, 47, 20, 1, 256, 10240, 154880, 202752, false, 1e6f, "deepseek2",
       experts(64, 4, 1536, latent({768, 512, 192, 64, 256}, v3_routing(1, 1.8, 1, 1)))},
      {"mistral-small-4", 4096, 36, 32, 1, 128, 12288, 131072, 1048576, false, 10000, "mistral4",
       experts(
           128, 4, 2048,
           latent({1024, 256, 64, 64, 128}, yarn({{"attention.temperature_scale", 0.1}}, 128, 8192, 0.1)))},
      {"tiny-gemma4", 256, 12, 4, 2, 64, 512, 512, 8192, true, 1e6f, "gemma4", gemma4(32, 64, 2, 16)},
      {"gemma4-e4b", 2560, 42, 8, 2, 512, 10240, 262144, 131072, true, 1e6f, "gemma4",
       gemma4(256, 512, 18, 256)},
      {"gemma4-26b-a4b", 2816, 30, 16, 8, 512, 2112, 262144, 262144, true, 1e6f, "gemma4",
       experts(128, 8, 704, gemma4_of_keys(30, 8, 2, 256, 1024))},
      {"gemma3n-e2b", 2048, 30, 8, 2, 256, 8192, 262144, 32768, true, 1e6f, "gemma3n", gemma3n(10)},
      {"gemma3n-e4b", 2048, 35, 8, 2, 256, 16384, 262144, 32768, true, 1e6f, "gemma3n", gemma3n(15)},
      {"falcon-h1-7b",
       3072,
       44,
       12,
       2,
       128,
       12288,
       130048,
       262144,
       false,
       1e11f,
       "falcon-h1",
       {{"ssm.conv_kernel", uint64_t(4)},
        {"ssm.time_step_rank", uint64_t(24)},
        {"ssm.inner_size", uint64_t(3072)},
        {"ssm.group_count", uint64_t(1)},
        {"ssm.state_size", uint64_t(256)}}},
      {"qwen3-8b", 4096, 36, 32, 8, 128, 12288, 151936, 40960, false, 1e6f, "qwen3"},
      {"gemma3-4b",
       2560,
       34,
       8,
       4,
       256,
       10240,
       262144,
       131072,
       true,
       1e6f,
       "gemma3",
       {{"attention.sliding_window", uint64_t(1024)}}},
      {"phi-4", 5120, 40, 40, 10, 128, 17920, 100352, 16384, false, 250000, "phi3"},
      {"llama-70b", 8192, 80, 64, 8, 128, 28672, 128256, 131072, false, 500000},
      {"minimax-m3", 6144, 60, 64, 4, 128, 12288, 200064, 524288, false, 5e6f, "minimax-m3",
       experts(128, 4, 3072, block_indexed(4, 128, 128, 16, 3))},
      {"minimax-m2", 3072, 62, 48, 8, 128, 1536, 200064, 196608, false, 5e6f, "minimax-m2",
       experts(256, 8, 1536, {{"expert_gating_func", uint64_t(2)}, {"rope.dimension_count", uint64_t(64)}})},
  };
  return shapes;
}

const SynthShape& synth_shape(std::string_view name) {
  std::string known;
  for (const SynthShape& shape : synth_shapes()) {
    if (shape.name == name) return shape;
    known += (known.empty() ? "" : ", ") + shape.name;
  }
  throw Error("'{}' is not a shape; known are {}", name, known);
}

std::unique_ptr<ModelFile> synth_head(const SynthShape& shape, const TypeMix& mix) {
  return std::make_unique<SynthHead>(shape, mix);
}

void write_synthetic_model(const SynthShape& shape, const TypeMix& mix, const std::string& out,
                           ThreadPool& pool, const std::function<void(size_t done, size_t total)>& progress) {
  const SynthHead head(shape, mix);
  const std::span<const TensorEntry> tensors = head.tensors();
  size_t total = 0;
  for (const TensorEntry& tensor : tensors) total += tensor.bytes;
  GgufWriter writer(out, head.metadata(), tensors);
  size_t done = 0;
  for (uint32_t index = 0; index < tensors.size(); ++index) {
    const TensorEntry& tensor = tensors[index];
    const size_t cols = tensor.shape.back();
    const size_t rows = all_rows(tensor);
    const size_t distinct = std::min(rows, kDistinctRows);
    const size_t bytes = row_bytes(tensor.dtype, cols);
    std::vector<std::byte> block(distinct * bytes);
    if (tensor.dtype == DType::i32) {  // of each row numbers of experts, no two of them the same
      const uint64_t count = head.metadata().number(shape.architecture + ".expert_count");
      for (size_t i = 0; i < distinct * cols; ++i) {
        const int32_t number = int32_t(i % count);
        std::memcpy(block.data() + i * sizeof(number), &number, sizeof(number));
      }
    }
    pool.parallel_for(tensor.dtype == DType::i32 ? 0 : distinct, 1, [&](size_t begin, size_t end) {
      std::vector<float> values(cols);
      for (size_t row = begin; row < end; ++row) {
        if (tensor.shape.size() == 1 || tensor.shape.back() == 1 || tensor.name.ends_with("_norm.weight")) {
          std::fill(values.begin(), values.end(), one_value_of(tensor.name));
        } else {
          fill_row(index, uint32_t(row), 1.0f / std::sqrt(float(cols)), values);
        }
        quantize_row(tensor.dtype, values, block.data() + row * bytes);
      }
    });
    for (size_t row = 0; row < rows; row += distinct) {
      writer.append({block.data(), std::min(distinct, rows - row) * bytes});
    }
    done += tensor.bytes;
    if (progress) progress(done, total);
  }
  writer.finish();
}

}  // namespace quire
