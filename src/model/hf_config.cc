#include "model/hf_config.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/error.h"
#include "base/mapped_file.h"
#include "model/model_file.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxConfigBytes = 16 << 20;
constexpr uint64_t kMostDeltaHeads = 1 << 16;  // and values in one
constexpr uint64_t kMaxCount = 1 << 24;  // of anything a model has: generous, and products of two stay exact
constexpr uint64_t kMaxLayers = 10000;
constexpr uint64_t kMaxHeadDim = 1 << 16;

const HfFamily& find_family(const std::string& model_type, const std::string& where) {
  const auto* family = std::ranges::find(kHfFamilies, model_type, &HfFamily::model_type);
  if (family != std::end(kHfFamilies)) return *family;
  std::string known;
  for (const HfFamily& one : kHfFamilies)
    known += fmt::format("{}{}", known.empty() ? "" : ", ", one.model_type);
  for (const HfTextOf& one : kHfTextOf) known += fmt::format(", {} (its text)", one.model_type);
  throw Error("{}: models of type {} are not supported; known are {}", where, in_quotes(model_type), known);
}

class Converter {
 public:
  Converter(const HfObject& config, HfConfig& out)
      : config_(config), out_(out), arch_(out.family->architecture) {}

  void convert() {
    check_activation();
    check_quantization();
    if (!config_.maybe_flag("is_causal").value_or(true)) set("attention.causal", false);
    if (arch_ == "gpt2")
      add_gpt2();
    else if (is_hf_alibi(*out_.family))
      add_hf_alibi(config_, out_);
    else if (is_hf_hybrid(*out_.family))
      add_hf_hybrid(config_, out_);
    else if (is_hf_latent(*out_.family))
      add_latent();
    else if (is_hf_compressed(*out_.family))
      add_compressed();
    else
      add_rotated();
    set("vocab_size", count("vocab_size"));
  }

 private:
  std::string key(std::string_view name) const { return fmt::format("{}.{}", arch_, name); }
  void set(std::string_view name, MetadataValue value) { out_.metadata.set(key(name), std::move(value)); }

  uint64_t count(const char* name, std::optional<uint64_t> usual = {}, uint64_t most = kMaxCount) const {
    return hf_count(config_, {name}, usual, most);
  }

  double positive(const char* name, std::optional<double> usual = {}) const {
    const auto value = config_.has(name) ? config_.maybe_real(name) : usual;
    if (!value) throw Error("{} has no \"{}\"", config_.where(), name);
    if (!(*value > 0) || !std::isfinite(*value))
      throw Error("{}: \"{}\" is {}", config_.where(), name, *value);
    return *value;
  }

  void check_activation() const {
    for (const char* name : {"hidden_activation", "activation_function", "hidden_act", "activation"}) {
      const auto activation = config_.maybe_text(name);
      if (!activation) continue;
      if (arch_ == "gemma" && *activation == "gelu") return;  // as its first files say
      if (arch_ == "minimax-m3" && *activation == "swigluoai") return;
      if (*activation != out_.family->activation)
        throw Error("{}: \"{}\" is {}; for {} only {} is supported", config_.where(), name,
                    in_quotes(*activation), out_.family->model_type, out_.family->activation);
      return;
    }
  }

  void check_quantization() {
    const auto quantization = config_.maybe_object("quantization_config");
    if (!quantization) return;
    const auto block = quantization->numbers("weight_block_size");
    if (block.empty()) return;
    if (block.size() != 2 || block[0] == 0 || block[1] == 0)
      throw Error("{}: \"weight_block_size\" is not two sizes", quantization->where());
    out_.fp8_block_rows = block[0];
    out_.fp8_block_cols = block[1];
  }

  void refuse_flag(const char* name, bool unless) const {
    if (config_.maybe_flag(name).value_or(unless) != unless)
      throw Error("{}: \"{}\" is {}, which is not supported for {}", config_.where(), name, !unless,
                  out_.family->model_type);
  }

  void add_gpt2() {
    const auto embedding = out_.embedding = count("n_embd");
    out_.layers = count("n_layer", {}, kMaxLayers);
    out_.heads = out_.kv_heads = count("n_head");
    if (!config_.maybe_flag("scale_attn_weights").value_or(true) ||
        config_.maybe_flag("scale_attn_by_inverse_layer_idx").value_or(false))
      throw Error("{}: unusual scaling of attention is not supported", config_.where());
    set("block_count", out_.layers);
    set("context_length", count(config_.has("n_positions") ? "n_positions" : "n_ctx"));
    set("embedding_length", embedding);
    set("feed_forward_length", count("n_inner", 4 * embedding));
    set("attention.head_count", out_.heads);
    set("attention.layer_norm_epsilon", positive("layer_norm_epsilon", 1e-5));
  }

  void add_compressed() {
    add_hf_compressed(config_, out_);
    add_epsilon();
    add_hf_experts(config_, out_);
    add_hf_compressed_routing(config_, out_);
  }

  void add_latent() {
    add_hf_latent(config_, out_);
    add_epsilon();
    add_hf_experts(config_, out_);
  }

  // Falcon's first models: one head of keys and values for all, or one for each.
  uint64_t falcon_kv_heads() const {
    if (config_.maybe_flag("new_decoder_architecture").value_or(false))
      return hf_count(config_, {"num_kv_heads", "n_head_kv"}, out_.heads);
    return config_.maybe_flag("multi_query").value_or(true) ? 1 : out_.heads;
  }

  void add_rotated() {
    const bool gemma3 = arch_ == "gemma3";  // its files rely on defaults
    const auto usual = [&](uint64_t value) { return gemma3 ? std::optional(value) : std::nullopt; };
    const auto embedding = out_.embedding = hf_count(config_, {"hidden_size", "n_embed"}, usual(2304));
    out_.layers = hf_count(config_, {"num_hidden_layers", "n_layer"}, usual(26), kMaxLayers);
    out_.heads = hf_count(config_, {"num_attention_heads", "n_head"}, usual(8));
    out_.kv_heads =
        arch_ == "falcon" ? falcon_kv_heads() : count("num_key_value_heads", usual(4).value_or(out_.heads));
    if (!config_.has("head_dim") && !gemma3 && embedding % out_.heads != 0)
      throw Error("{}: \"hidden_size\" {} does not divide into {} heads", config_.where(), embedding,
                  out_.heads);
    const uint64_t head_dim = count("head_dim", usual(256).value_or(usual_head_dim(embedding)));
    if (head_dim > kMaxHeadDim)
      throw Error("{}: \"head_dim\" would be {}, which no model has", config_.where(), head_dim);
    const auto width = usual(9216).value_or(4 * embedding);
    const bool has_usual_width = gemma3 || arch_ == "falcon";

    set("block_count", out_.layers);
    set("context_length",
        count("max_position_embeddings", arch_ == "falcon" ? std::optional<uint64_t>(2048) : usual(131072)));
    set("embedding_length", embedding);
    if (arch_ != "gemma3n")  // which says it layer by layer
      set("feed_forward_length",
          hf_count(config_,
                   {"prefix_dense_intermediate_size", "dense_intermediate_size", "intermediate_size_mlp",
                    "ffn_hidden_size", "intermediate_size", "moe_intermediate_size"},
                   has_usual_width ? std::optional(width) : std::nullopt));
    set("attention.head_count", out_.heads);
    set("attention.head_count_kv", out_.kv_heads);
    set("attention.key_length", head_dim);
    set("attention.value_length", head_dim);
    add_epsilon();
    if (arch_ == "gemma4") {
      add_hf_gemma4(config_, head_dim, out_);
    } else {
      add_hf_rope(config_, head_dim, out_);
      if (arch_ != "minimax-m3") add_hf_window(config_, out_);  // whose kinds of layers are others
      add_family();
      if (arch_ == "laguna") add_hf_laguna(config_, head_dim, out_);
      if (arch_ == "muse-glimmer") add_hf_muse_glimmer(config_, head_dim, out_);
    }
    if (arch_.starts_with("qwen35") || arch_ == "qwen3next") add_hybrid();
    add_hf_experts(config_, out_);
  }

  uint64_t usual_head_dim(uint64_t embedding) const {
    if (arch_ == "ernie4_5" || arch_ == "seed_oss" || arch_ == "glm4" || arch_ == "chatglm") return 128;
    return std::max<uint64_t>(embedding / out_.heads, 1);
  }

  void add_epsilon() {
    for (const char* name : {"layer_norm_eps", "norm_epsilon", "layer_norm_epsilon"}) {
      if (!config_.has("rms_norm_eps") && config_.has(name))
        return set("attention.layer_norm_epsilon", positive(name));
    }
    set("attention.layer_norm_rms_epsilon", positive("rms_norm_eps", 1e-6));
  }

  void add_family() {
    if (arch_ == "gemma" || arch_ == "gemma2" || arch_ == "gemma3")
      refuse_flag("use_bidirectional_attention", false);
    if (arch_ == "gemma2" || arch_ == "gemma3") add_gemma();
    if (arch_ == "falcon-h1") add_hf_falcon_h1(config_, out_);
    if (arch_ == "gemma3n") add_hf_gemma3n(config_, out_);
    if (arch_ == "granite" || arch_ == "granitemoe") add_granite();
    if (arch_ == "mimo2") add_hf_mimo(config_, out_);
    if (arch_ == "minimax-m3") add_hf_minimax_m3(config_, out_);
    if (arch_ == "cohere2moe") check_cohere2_moe();
    if (arch_ == "command-r" || arch_.starts_with("cohere2"))
      set("logit_scale", positive("logit_scale", 0.0625));
    if (arch_ == "gptneox")
      set("use_parallel_residual", config_.maybe_flag("use_parallel_residual").value_or(true));
    if (arch_ == "falcon") {
      refuse_flag("alibi", false);
      refuse_flag("parallel_attn", true);
    }
    if (arch_ == "olmoe" && config_.has("clip_qkv"))
      throw Error("{}: \"clip_qkv\" is not supported", config_.where());
    if (arch_ == "phimoe") out_.metadata.set("quire.router_jitter", positive("router_jitter_noise", 0.01));
    if (arch_ == "llama4") add_llama4();
  }

  void check_cohere2_moe() const {
    const std::string joined = config_.maybe_text("shared_expert_combination_strategy").value_or("average");
    if (joined != "average")
      throw Error("{}: \"shared_expert_combination_strategy\" is {}; known is average", config_.where(),
                  in_quotes(joined));
    const std::string score = config_.maybe_text("expert_selection_fn").value_or("softmax");
    if (score != "softmax" && score != "sigmoid")
      throw Error("{}: \"expert_selection_fn\" is {}; known are softmax and sigmoid", config_.where(),
                  in_quotes(score));
    if (count("prefix_dense_sliding_window_pattern", 1) != 1)
      throw Error("{}: windows in the dense layers are not supported", config_.where());
    if (config_.maybe_number("first_k_dense_replace").value_or(0) > 0 && !config_.has("layer_types"))
      throw Error("{} has no \"layer_types\"", config_.where());
  }

  void add_llama4() {
    set("attention.chunk_size", count("attention_chunk_size", 8192));
    const bool grows = config_.maybe_flag("attn_temperature_tuning").value_or(true);
    set("attention.temperature_scale", grows ? positive("attn_scale", 0.1) : 0.0);
    set("attention.temperature_length", count("floor_scale", 8192));
    out_.metadata.set("quire.query_key_norm", config_.maybe_flag("use_qk_norm").value_or(true));
  }

  void add_gemma() {
    set("attention.scale", 1 / std::sqrt(positive("query_pre_attn_scalar", 256)));
    const bool gemma2 = arch_ == "gemma2";
    const auto soft_cap = [&](const char* name, std::string_view to) {
      const auto value = config_.maybe_real(name);
      if (value || gemma2) set(to, value.value_or(0));  // readers of Gemma 2 take a missing key as 50 and 30
    };
    soft_cap("attn_logit_softcapping", "attn_logit_softcapping");
    soft_cap("final_logit_softcapping", "final_logit_softcapping");
  }

  void add_hybrid() {
    out_.delta_key_heads = count("linear_num_key_heads", {}, kMostDeltaHeads);
    out_.delta_value_heads = count("linear_num_value_heads", {}, kMostDeltaHeads);
    out_.delta_key_dim = count("linear_key_head_dim", {}, kMostDeltaHeads);
    out_.delta_value_dim = count("linear_value_head_dim", {}, kMostDeltaHeads);
    if (out_.delta_value_heads % out_.delta_key_heads != 0)
      throw Error("{}: \"linear_num_value_heads\" is {}, which {} key heads cannot share", config_.where(),
                  out_.delta_value_heads, out_.delta_key_heads);
    out_.delta_tiled = arch_ != "qwen3next";
    set("ssm.group_count", out_.delta_key_heads);
    set("ssm.time_step_rank", out_.delta_value_heads);
    set("ssm.state_size", out_.delta_key_dim);
    set("ssm.inner_size", out_.delta_value_heads * out_.delta_value_dim);
    set("ssm.conv_kernel", count("linear_conv_kernel_dim", 4));
    if (!config_.maybe_flag("attn_output_gate").value_or(true))
      throw Error("{}: \"attn_output_gate\" is false, which is not supported", config_.where());
    const uint64_t interval = count("full_attention_interval", 4);
    set("full_attention_interval", interval);
    const std::vector<std::string> kinds = config_.texts("layer_types");
    if (kinds.empty()) return;
    if (kinds.size() != out_.layers)
      throw Error("{}: \"layer_types\" speaks of {} layers, but there are {}", config_.where(), kinds.size(),
                  out_.layers);
    std::vector<bool> recurrent;
    bool regular = true;
    for (const std::string& kind : kinds) {
      if (kind != "linear_attention" && kind != "full_attention")
        throw Error("{}: \"layer_types\" has {}; known are linear_attention and full_attention",
                    config_.where(), in_quotes(kind));
      recurrent.push_back(kind == "linear_attention");
      regular = regular && recurrent.back() == (recurrent.size() % interval != 0);
    }
    if (!regular) set("attention.recurrent_layers", recurrent);
  }

  void add_granite() {
    set("attention.scale", positive("attention_multiplier", 1));
    set("embedding_scale", positive("embedding_multiplier", 1));
    set("residual_scale", positive("residual_multiplier", 1));
    set("logit_scale", positive("logits_scaling", 1));
  }

  const HfObject& config_;
  HfConfig& out_;
  std::string_view arch_;
};

void add_token_ids(const HfObject& config, Metadata& metadata) {
  if (const auto bos = config.numbers("bos_token_id"); !bos.empty())
    metadata.set("tokenizer.ggml.bos_token_id", bos.front());
  if (const auto pad = config.numbers("pad_token_id"); !pad.empty())
    metadata.set("tokenizer.ggml.padding_token_id", pad.front());
  const auto eos = config.numbers("eos_token_id");
  if (eos.empty()) return;
  metadata.set("tokenizer.ggml.eos_token_id", eos.front());
  metadata.set("quire.eos_token_ids", eos);
}

void add_generation(const HfObject& generation, Metadata& metadata) {
  add_token_ids(generation, metadata);
  constexpr std::pair<const char*, const char*> kNames[] = {{"temperature", "temp"},
                                                            {"top_p", "top_p"},
                                                            {"min_p", "min_p"},
                                                            {"repetition_penalty", "penalty_repeat"}};
  for (const auto& [from, to] : kNames)
    if (const auto value = generation.maybe_real(from))
      metadata.set(fmt::format("general.sampling.{}", to), *value);
  if (const auto top_k = generation.maybe_number("top_k")) metadata.set("general.sampling.top_k", *top_k);
}

Json read_config_json(const std::string& path) {
  const MappedFile file(path);
  const auto bytes = file.bytes();
  if (bytes.size() > kMaxConfigBytes)
    throw Error("{} is too large for a config.json: {} bytes", path, bytes.size());
  return parse_json(without_infinities({reinterpret_cast<const char*>(bytes.data()), bytes.size()}), path);
}

}  // namespace

uint64_t hf_count(const HfObject& config, std::initializer_list<const char*> names,
                  std::optional<uint64_t> usual, uint64_t most) {
  for (const char* name : names) {
    if (!config.has(name)) continue;
    const uint64_t value = config.number(name);
    if (value == 0 || value > most) throw Error("{}: \"{}\" is {}", config.where(), name, value);
    return value;
  }
  if (!usual) throw Error("{} has no \"{}\"", config.where(), *names.begin());
  return *usual;
}

HfConfig convert_hf_config(HfObject config, const std::string& name) {
  const HfObject whole = config;
  std::string model_type = config.maybe_text("model_type").value_or("");
  HfConfig out;
  out.metadata = Metadata(config.where());
  const auto* text_of = std::ranges::find(kHfTextOf, model_type, &HfTextOf::model_type);
  if (text_of != std::end(kHfTextOf)) {
    out.metadata.set("quire.text_of", model_type);
    model_type = text_of->text;
    if (auto text = config.maybe_object("text_config")) {
      model_type = text->maybe_text("model_type").value_or(model_type);
      config = *std::move(text);
      add_token_ids(config, out.metadata);
    } else if (!config.has("hidden_size")) {  // the first of their kind have all of it in one
      throw Error("{} has no \"text_config\"", config.where());
    }
  }
  add_token_ids(whole, out.metadata);
  if (model_type == "nemotron_h" && has_hf_experts(config)) model_type = "nemotron_h_moe";
  out.family = &find_family(model_type, whole.where());
  const std::optional<bool> tied = whole.maybe_flag("tie_word_embeddings");
  out.tied = tied.value_or(config.maybe_flag("tie_word_embeddings").value_or(out.family->tied));
  out.metadata.set("general.architecture", std::string(out.family->architecture));
  out.metadata.set("general.type", std::string("model"));
  out.metadata.set("general.name", name);
  // Of a model that also sees images, the whole config may say it, or its text's.
  out.quantization = read_hf_quantization(whole);
  if (out.quantization.method.empty()) out.quantization = read_hf_quantization(config);
  Converter(config, out).convert();
  return out;
}

namespace {

// A folder's name; in the Hugging Face cache, models--ORG--NAME/snapshots/COMMIT, the model's.
std::string name_of(const fs::path& folder) {
  const std::string repo = folder.parent_path().parent_path().filename().string();
  if (folder.parent_path().filename() == "snapshots" && repo.starts_with("models--"))
    return repo.substr(repo.rfind("--") + 2);
  return folder.filename().string();
}

}  // namespace

HfConfig read_hf_config(const std::string& folder) {
  const fs::path path(folder);
  const std::string config_path = (path / "config.json").string();
  const fs::path absolute = fs::absolute(path).lexically_normal();
  const fs::path name = absolute.has_filename() ? absolute : absolute.parent_path();
  HfConfig out = convert_hf_config(HfObject(read_config_json(config_path), config_path), name_of(name));
  const std::string generation_path = (path / "generation_config.json").string();
  if (fs::exists(generation_path))
    add_generation(HfObject(read_json_file(generation_path, kMaxConfigBytes), generation_path), out.metadata);
  add_hf_pooling(folder, out);
  return out;
}

}  // namespace quire
