#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "base/error.h"
#include "model/hf_config.h"
#include "model/model_file.h"

// DeepSeek V4's config.json: as it was published, and as Transformers 5 writes it.

namespace quire {
namespace {

constexpr uint64_t kMostLayersOfRows = 4096;
constexpr uint64_t kMostValues = 1 << 16;  // of a head, or of a latent
constexpr double kMostBase = 1e15;         // of a rotation

class Compressed {
 public:
  Compressed(const HfObject& config, HfConfig& out) : config_(config), out_(out) {}

  void convert() {
    out_.embedding = hf_count(config_, {"hidden_size"});
    out_.layers = hf_count(config_, {"num_hidden_layers"}, {}, kMostLayersOfRows);
    out_.heads = values("num_attention_heads");
    out_.kv_heads = hf_count(config_, {"num_key_value_heads"}, 1, kMostValues);
    head_dim_ = values("head_dim");
    for (const char* flag : {"attention_bias", "mlp_bias"})
      if (config_.maybe_flag(flag).value_or(false))
        throw Error("{}: \"{}\" is true, which is not supported", config_.where(), flag);
    set("block_count", out_.layers);
    set("context_length", hf_count(config_, {"max_position_embeddings"}));
    set("embedding_length", out_.embedding);
    set("attention.head_count", out_.heads);
    set("attention.head_count_kv", out_.kv_heads);
    set("attention.key_length", head_dim_);
    set("attention.value_length", head_dim_);
    set("attention.q_lora_rank", values("q_lora_rank"));
    set("attention.output_lora_rank", values("o_lora_rank"));
    set("attention.output_group_count", values("o_groups"));
    set("attention.sliding_window", hf_count(config_, {"sliding_window"}, {}, 1 << 20));
    set("attention.compress_ratios", ratios());
    set("attention.indexer.head_count", values("index_n_heads"));
    set("attention.indexer.key_length", values("index_head_dim"));
    set("attention.indexer.top_k", values("index_topk"));
    set("hyper_connection.count", hf_count(config_, {"hc_mult"}, 4, 64));
    set("hyper_connection.sinkhorn_iterations", hf_count(config_, {"hc_sinkhorn_iters"}, 20, 1000));
    set("hyper_connection.epsilon", real(config_, "hc_eps", 1e-6, 1));
    const double limit = config_.maybe_real("swiglu_limit").value_or(10);
    if (limit != 0) real(config_, "swiglu_limit", 10, 1e6);  // 0: there is none
    set("swiglu_clamp_exp", std::vector<double>(out_.layers, limit));
    set("hash_layer_count", hashed_layers());
    add_rope();
  }

  // What is said of experts in no words of others.
  void add_routing() {
    const std::string score = config_.maybe_text("scoring_func").value_or("sqrtsoftplus");
    const uint64_t number = score == "sqrtsoftplus" ? 4 : score == "sigmoid" ? 2 : score == "softmax" ? 1 : 0;
    if (number == 0)
      throw Error("{}: \"scoring_func\" is {}; known are sqrtsoftplus, sigmoid and softmax", config_.where(),
                  in_quotes(score));
    set("expert_gating_func", number);
    set("expert_weights_norm", true);  // whatever "norm_topk_prob" says
    if (!config_.has("routed_scaling_factor")) set("expert_weights_scale", 1.5);
  }

 private:
  void set(const char* key, MetadataValue value) {
    out_.metadata.set(fmt::format("{}.{}", out_.family->architecture, key), std::move(value));
  }
  uint64_t values(const char* key) const { return hf_count(config_, {key}, {}, kMostValues); }
  static double real(const HfObject& from, const char* key, double usual, double most) {
    const double value = from.maybe_real(key).value_or(usual);
    if (!(value > 0 && value <= most)) throw Error("{}: \"{}\" is {}", from.where(), key, value);
    return value;
  }

  // Of each layer, how many tokens a row has beside the window; 0: there are none.
  std::vector<uint64_t> ratios() const {
    std::vector<uint64_t> ratios = config_.numbers("compress_ratios");
    const std::vector<std::string> kinds = config_.texts("layer_types");
    if (!kinds.empty()) {
      const HfObject none(Json::object(), config_.where());
      const HfObject rates = config_.maybe_object("compress_rates").value_or(none);
      const auto rate = [&](const char* kind, const char* old, uint64_t usual) {
        return hf_count(rates.has(kind) ? rates : config_, {rates.has(kind) ? kind : old}, usual,
                        kMostValues);
      };
      ratios.clear();
      for (const std::string& kind : kinds) {
        if (kind == "sliding_attention") {
          ratios.push_back(0);
        } else if (kind == "compressed_sparse_attention") {
          ratios.push_back(rate("compressed_sparse_attention", "compress_rate_csa", 4));
          if (ratios.back() != 4)
            throw Error("{}: \"compress_rates\" has {} for {}; known is 4", config_.where(), ratios.back(),
                        kind);
        } else if (kind == "heavily_compressed_attention") {
          ratios.push_back(rate("heavily_compressed_attention", "compress_rate_hca", 128));
          if (ratios.back() != 128)
            throw Error("{}: \"compress_rates\" has {} for {}; known is 128", config_.where(), ratios.back(),
                        kind);
        } else {
          throw Error(
              "{}: \"layer_types\" has {}; known are sliding_attention, compressed_sparse_attention and "
              "heavily_compressed_attention",
              config_.where(), in_quotes(kind));
        }
      }
    }
    const char* const key = kinds.empty() ? "compress_ratios" : "layer_types";
    if (ratios.size() < out_.layers)
      throw Error("{}: \"{}\" speaks of {} layers, but there are {}", config_.where(), key, ratios.size(),
                  out_.layers);
    ratios.resize(out_.layers);  // those that predict further tokens are not used
    for (const uint64_t ratio : ratios)
      if (ratio != 0 && ratio != 4 && ratio != 128)
        throw Error("{}: \"{}\" has {}; known are 0, 4 and 128", config_.where(), key, ratio);
    return ratios;
  }

  // So many at the beginning have experts by token.
  uint64_t hashed_layers() const {
    const std::vector<std::string> kinds = config_.texts("mlp_layer_types");
    if (kinds.empty()) {
      const uint64_t said = config_.maybe_number("num_hash_layers").value_or(3);
      return std::min(said, out_.layers);
    }
    if (kinds.size() < out_.layers)
      throw Error("{}: \"mlp_layer_types\" speaks of {} layers, but there are {}", config_.where(),
                  kinds.size(), out_.layers);
    uint64_t hashed = 0;
    for (uint64_t i = 0; i < out_.layers; ++i) {
      if (kinds[i] != "hash_moe" && kinds[i] != "moe")
        throw Error("{}: \"mlp_layer_types\" has {}; known are hash_moe and moe", config_.where(),
                    in_quotes(kinds[i]));
      if (kinds[i] != "hash_moe") continue;
      if (hashed != i)
        throw Error("{}: \"mlp_layer_types\" has hash_moe behind moe, which is not supported",
                    config_.where());
      ++hashed;
    }
    return hashed;
  }

  void add_rope() {
    const HfObject none(Json::object(), config_.where());
    const HfObject all =
        config_.maybe_object("rope_parameters").value_or(config_.maybe_object("rope_scaling").value_or(none));
    const HfObject own = all.maybe_object("main").value_or(none);
    const HfObject rows = all.maybe_object("compress").value_or(all);
    const double share =
        real(own, "partial_rotary_factor", real(config_, "partial_rotary_factor", 0.125, 1), 1);
    const uint64_t rotated =
        hf_count(config_, {"qk_rope_head_dim"}, uint64_t(double(head_dim_) * share), head_dim_);
    if (rotated < 2 || rotated % 2 != 0)
      throw Error("{}: \"qk_rope_head_dim\" is {}, and what is rotated comes in pairs", config_.where(),
                  rotated);
    set("rope.dimension_count", rotated);
    set("rope.freq_base", real(own, "rope_theta", real(config_, "rope_theta", 10000, kMostBase), kMostBase));
    const bool nested = all.has("compress");
    const double base = real(config_, "compress_rope_theta", 160000, kMostBase);
    set("attention.compress_rope_freq_base", nested ? real(rows, "rope_theta", base, kMostBase) : base);
    if (kind(own) != "default")
      throw Error("{}: positions scaled by {} are not supported in layers with a window alone", own.where(),
                  in_quotes(kind(own)));
    if (kind(rows) == "default") return;
    if (kind(rows) != "yarn")
      throw Error("{}: positions scaled by {} are not supported; default and yarn are", rows.where(),
                  in_quotes(kind(rows)));
    const double context = double(hf_count(config_, {"max_position_embeddings"}));
    const double original = real(rows, "original_max_position_embeddings", context, kMostBase);
    if (original < 2) throw Error("{}: \"original_max_position_embeddings\" is {}", rows.where(), original);
    set("rope.scaling.type", std::string("yarn"));
    set("rope.scaling.factor", real(rows, "factor", context / original, kMostBase));
    set("rope.scaling.original_context_length", uint64_t(original));
    set("rope.scaling.yarn_beta_fast", real(rows, "beta_fast", 32, kMostBase));
    set("rope.scaling.yarn_beta_slow", real(rows, "beta_slow", 1, kMostBase));
    if (const auto truncate = rows.maybe_flag("truncate"))
      out_.metadata.set("quire.rope.yarn_truncate", *truncate);
    // What YaRN would multiply with is not done here unless it is said.
    if (rows.has("attention_factor") && real(rows, "attention_factor", 1, kMostBase) != 1)
      out_.metadata.set("quire.rope.attention_factor", real(rows, "attention_factor", 1, kMostBase));
  }

  static std::string kind(const HfObject& rope) {
    if (auto type = rope.maybe_text("rope_type")) return *type;
    return rope.maybe_text("type").value_or("default");
  }

  const HfObject& config_;
  HfConfig& out_;
  uint64_t head_dim_ = 0;
};

}  // namespace

bool is_hf_compressed(const HfFamily& family) {
  return family.architecture == "deepseek4";
}

void add_hf_compressed(const HfObject& config, HfConfig& out) {
  Compressed(config, out).convert();
}

void add_hf_compressed_routing(const HfObject& config, HfConfig& out) {
  Compressed(config, out).add_routing();
}

}  // namespace quire
