#include "model/hf_config.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/error.h"
#include "model/model_file.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxConfigBytes = 16 << 20;
constexpr uint64_t kMaxCount = 1 << 24;  // of anything a model has: generous, and products of two stay exact
constexpr uint64_t kMaxLayers = 10000;
constexpr uint64_t kMaxExperts = 1 << 16;

const HfFamily& find_family(const std::string& model_type, const std::string& where) {
  const auto* family = std::ranges::find(kHfFamilies, model_type, &HfFamily::model_type);
  if (family != std::end(kHfFamilies)) return *family;
  std::string known;
  for (const HfFamily& one : kHfFamilies)
    known += fmt::format("{}{}", known.empty() ? "" : ", ", one.model_type);
  throw Error("{}: models of type {} are not supported; known are {}", where, in_quotes(model_type), known);
}

class Converter {
 public:
  Converter(const HfObject& config, HfConfig& out)
      : config_(config), out_(out), arch_(out.family->architecture) {}

  void convert() {
    check_activation();
    check_quantization();
    if (arch_ == "gpt2")
      add_gpt2();
    else
      add_rotated();
    set("vocab_size", count("vocab_size"));
    out_.tied = config_.maybe_flag("tie_word_embeddings").value_or(out_.family->tied);
  }

 private:
  std::string key(std::string_view name) const { return fmt::format("{}.{}", arch_, name); }
  void set(std::string_view name, MetadataValue value) { out_.metadata.set(key(name), std::move(value)); }

  uint64_t count(const char* name, std::optional<uint64_t> usual = {}, uint64_t most = kMaxCount) const {
    const uint64_t value = config_.has(name) || !usual ? config_.number(name) : *usual;
    if (value == 0 || value > most) throw Error("{}: \"{}\" is {}", config_.where(), name, value);
    return value;
  }

  double positive(const char* name, std::optional<double> usual = {}) const {
    const auto value = config_.has(name) ? config_.maybe_real(name) : usual;
    if (!value) throw Error("{} has no \"{}\"", config_.where(), name);
    if (!(*value > 0) || !std::isfinite(*value))
      throw Error("{}: \"{}\" is {}", config_.where(), name, *value);
    return *value;
  }

  void check_activation() const {
    for (const char* name : {"hidden_activation", "activation_function", "hidden_act"}) {
      const auto activation = config_.maybe_text(name);
      if (!activation) continue;
      if (*activation != out_.family->activation)
        throw Error("{}: \"{}\" is {}; for {} only {} is supported", config_.where(), name,
                    in_quotes(*activation), out_.family->model_type, out_.family->activation);
      return;
    }
  }

  void check_quantization() {
    const auto quantization = config_.maybe_object("quantization_config");
    if (!quantization) return;
    const std::string method = quantization->maybe_text("quant_method").value_or("none");
    const bool float8 = method == "fp8" || (method == "compressed-tensors" &&
                                            quantization->maybe_text("format") == "float-quantized");
    if (!float8 && method != "mxfp4")
      throw Error("{} has weights quantized by {}; of quantized folders only FP8 and MXFP4 are supported",
                  config_.where(), in_quotes(method));
    const auto block = quantization->numbers("weight_block_size");
    if (block.empty()) return;
    if (block.size() != 2 || block[0] == 0 || block[1] == 0)
      throw Error("{}: \"weight_block_size\" is not two sizes", quantization->where());
    out_.fp8_block_rows = block[0];
    out_.fp8_block_cols = block[1];
  }

  void add_gpt2() {
    const auto embedding = count("n_embd");
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

  void add_rotated() {
    const bool gemma3 = arch_ == "gemma3";  // its files rely on defaults
    const auto usual = [&](uint64_t value) { return gemma3 ? std::optional(value) : std::nullopt; };
    const auto embedding = count("hidden_size", usual(2304));
    out_.layers = count("num_hidden_layers", usual(26), kMaxLayers);
    out_.heads = count("num_attention_heads", usual(8));
    out_.kv_heads = count("num_key_value_heads", usual(4).value_or(out_.heads));
    if (!config_.has("head_dim") && !gemma3 && embedding % out_.heads != 0)
      throw Error("{}: \"hidden_size\" {} does not divide into {} heads", config_.where(), embedding,
                  out_.heads);
    const uint64_t head_dim =
        count("head_dim", usual(256).value_or(std::max<uint64_t>(embedding / out_.heads, 1)));

    set("block_count", out_.layers);
    set("context_length", count("max_position_embeddings", usual(131072)));
    set("embedding_length", embedding);
    set("feed_forward_length", count("intermediate_size", usual(9216)));
    set("attention.head_count", out_.heads);
    set("attention.head_count_kv", out_.kv_heads);
    set("attention.key_length", head_dim);
    set("attention.value_length", head_dim);
    set("attention.layer_norm_rms_epsilon", positive("rms_norm_eps", 1e-6));
    add_hf_rope(config_, head_dim, out_);
    add_hf_window(config_, out_);
    if (arch_ == "gemma2" || gemma3) add_gemma();
    if (arch_ == "granite") add_granite();
    if (arch_ == "qwen35") add_hybrid();
    add_experts();
  }

  void add_gemma() {
    if (config_.maybe_flag("use_bidirectional_attention").value_or(false))
      throw Error("{}: attention in both directions is not supported", config_.where());
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
    out_.delta_key_heads = count("linear_num_key_heads", {}, kMaxExperts);
    out_.delta_value_heads = count("linear_num_value_heads", {}, kMaxExperts);
    out_.delta_key_dim = count("linear_key_head_dim", {}, kMaxExperts);
    out_.delta_value_dim = count("linear_value_head_dim", {}, kMaxExperts);
    if (out_.delta_value_heads % out_.delta_key_heads != 0)
      throw Error("{}: \"linear_num_value_heads\" is {}, which {} key heads cannot share", config_.where(),
                  out_.delta_value_heads, out_.delta_key_heads);
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
    if (!regular) out_.metadata.set("quire.recurrent_layers", recurrent);
  }

  void add_granite() {
    set("attention.scale", positive("attention_multiplier", 1));
    set("embedding_scale", positive("embedding_multiplier", 1));
    set("residual_scale", positive("residual_multiplier", 1));
    set("logit_scale", positive("logits_scaling", 1));
  }

  void add_experts() {
    const char* name = config_.has("num_local_experts") ? "num_local_experts" : "num_experts";
    if (!config_.has(name)) return;
    out_.experts = count(name, {}, kMaxExperts);
    set("expert_count", out_.experts);
    set("expert_used_count",
        count(config_.has("num_experts_per_tok") ? "num_experts_per_tok" : "experts_per_token"));
    if (arch_ == "qwen3moe") {
      set("expert_feed_forward_length", count("moe_intermediate_size"));
      set("expert_weights_norm", config_.maybe_flag("norm_topk_prob").value_or(false));
    }
    if (arch_ == "gpt-oss") {
      set("expert_feed_forward_length", count("intermediate_size"));
      out_.metadata.set("quire.swiglu_limit", positive("swiglu_limit", 7.0));
      out_.metadata.set("quire.swiglu_alpha", positive("swiglu_alpha", 1.702));
    }
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

}  // namespace

HfConfig read_hf_config(const std::string& folder) {
  const fs::path path(folder);
  const std::string config_path = (path / "config.json").string();
  HfObject config(read_json_file(config_path, kMaxConfigBytes), config_path);
  std::string model_type = config.maybe_text("model_type").value_or("");

  HfConfig out;
  std::optional<bool> tied;  // as said outside of the text's part
  out.metadata = Metadata(config_path);
  add_token_ids(config, out.metadata);
  for (const auto& [both, text_alone] :
       {std::pair("gemma3", "gemma3_text"), std::pair("qwen3_5", "qwen3_5_text")}) {
    if (model_type != both) continue;  // text and images: only the text is read
    auto text = config.maybe_object("text_config");
    if (!text) throw Error("{} has no \"text_config\"", config_path);
    tied = config.maybe_flag("tie_word_embeddings");
    config = *std::move(text);
    model_type = text_alone;
    break;
  }
  out.family = &find_family(model_type, config_path);
  out.metadata.set("general.architecture", std::string(out.family->architecture));
  out.metadata.set("general.type", std::string("model"));
  const fs::path name = fs::absolute(path).lexically_normal();
  out.metadata.set("general.name", (name.has_filename() ? name : name.parent_path()).filename().string());
  const bool says_tied = config.has("tie_word_embeddings");
  Converter(config, out).convert();
  if (tied && !says_tied) out.tied = *tied;

  const std::string generation_path = (path / "generation_config.json").string();
  if (fs::exists(generation_path))
    add_generation(HfObject(read_json_file(generation_path, kMaxConfigBytes), generation_path), out.metadata);
  return out;
}

}  // namespace quire
