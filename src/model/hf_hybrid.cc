#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "model/hf_config.h"
#include "model/model_file.h"

namespace quire {
namespace {

constexpr uint64_t kMostHybridLayers = 10000;
constexpr uint64_t kMostHybridHeadDim = 1 << 16;
constexpr double kMostStep = 1e300;

enum class Kind : uint8_t { recurrent, attention, mlp, experts };

struct KindName {
  std::string_view name;
  Kind kind;
};
constexpr KindName kKindNames[] = {
    {"mamba", Kind::recurrent},
    {"linear_attention", Kind::recurrent},
    {"conv", Kind::recurrent},
    {"attention", Kind::attention},
    {"full_attention", Kind::attention},
    {"mlp", Kind::mlp},
    {"moe", Kind::experts},
    {"M", Kind::recurrent},
    {"*", Kind::attention},
    {"-", Kind::mlp},
    {"E", Kind::experts},
};

Kind kind_of(const HfObject& config, const char* key, std::string_view name) {
  const auto* known = std::ranges::find(kKindNames, name, &KindName::name);
  if (known == std::end(kKindNames))
    throw Error("{}: \"{}\" has {}; known are mamba, linear_attention, conv, full_attention, mlp and moe",
                config.where(), key, in_quotes(std::string(name)));
  return known->kind;
}

// What a config lists; nothing: it lists nothing.
std::vector<Kind> listed_kinds(const HfObject& config) {
  std::vector<Kind> kinds;
  for (const char* key : {"layers_block_type", "layer_types"}) {
    for (const std::string& name : config.texts(key)) kinds.push_back(kind_of(config, key, name));
    if (!kinds.empty()) return kinds;
  }
  const char* key = "hybrid_override_pattern";
  for (const char letter : config.maybe_text(key).value_or(""))
    kinds.push_back(kind_of(config, key, std::string_view(&letter, 1)));
  return kinds;
}

class Hybrid {
 public:
  Hybrid(const HfObject& config, HfConfig& out)
      : config_(config), out_(out), arch_(out.family->architecture) {}

  void convert() {
    out_.embedding = count({"hidden_size", "d_model"});
    set("embedding_length", out_.embedding);
    read_kinds();
    out_.layers = kinds_.size();
    set("block_count", out_.layers);
    set("context_length", count({"max_position_embeddings"}, 1 << 20));
    add_epsilon();
    add_attention();
    if (arch_.starts_with("lfm2")) {
      set("shortconv.l_cache", count({"conv_L_cache"}, 3));
    } else if (arch_ == "jamba" || arch_ == "mamba") {
      add_selective_scan();
    } else {
      add_state_space();
    }
    add_mlps();
  }

 private:
  void set(std::string_view name, MetadataValue value) {
    out_.metadata.set(fmt::format("{}.{}", arch_, name), std::move(value));
  }
  uint64_t count(std::initializer_list<const char*> names, std::optional<uint64_t> usual = {}) const {
    return hf_count(config_, names, usual);
  }
  double positive(const char* name, double usual) const {
    const double value = config_.maybe_real(name).value_or(usual);
    if (!(value > 0) || !std::isfinite(value)) throw Error("{}: \"{}\" is {}", config_.where(), name, value);
    return value;
  }

  void read_kinds() {
    kinds_ = listed_kinds(config_);
    if (kinds_.size() > kMostHybridLayers)
      throw Error("{}: {} layers are more than any model has", config_.where(), kinds_.size());
    const bool lists_alone = arch_.starts_with("nemotron_h");
    if (kinds_.empty() && lists_alone) throw Error("{} has no \"layers_block_type\"", config_.where());
    if (lists_alone) return;
    const uint64_t layers = hf_count(config_, {"num_hidden_layers", "n_layer"}, {}, kMostHybridLayers);
    if (!kinds_.empty() && kinds_.size() != layers)
      throw Error("{}: \"layer_types\" speaks of {} layers, but there are {}", config_.where(), kinds_.size(),
                  layers);
    if (std::ranges::any_of(kinds_, [](Kind kind) { return kind == Kind::mlp || kind == Kind::experts; }))
      throw Error("{}: \"layer_types\" has layers of an MLP alone, which is not supported for {}",
                  config_.where(), out_.family->model_type);
    const bool recurrent_only = arch_ == "mamba" || arch_ == "mamba2";
    if (!kinds_.empty() && !recurrent_only) return;
    kinds_.assign(layers, Kind::recurrent);
    if (arch_ == "jamba") return add_period();
    for (const char* key : {"full_attn_idxs", "attn_layer_indices"}) {
      for (const uint64_t layer : config_.numbers(key)) {
        if (layer >= layers)
          throw Error("{}: \"{}\" speaks of layer {} of {}", config_.where(), key, layer, layers);
        kinds_[layer] = Kind::attention;
      }
    }
  }

  void add_period() {
    const uint64_t period = count({"attn_layer_period"}, 8);
    const uint64_t offset = config_.maybe_number("attn_layer_offset").value_or(4);
    if (offset >= period)
      throw Error("{}: \"attn_layer_offset\" is {}, of a period of {}", config_.where(), offset, period);
    for (uint64_t i = offset; i < kinds_.size(); i += period) kinds_[i] = Kind::attention;
  }

  void add_epsilon() {
    for (const char* name : {"rms_norm_eps", "norm_eps", "layer_norm_epsilon"}) {
      if (config_.has(name)) return set("attention.layer_norm_rms_epsilon", positive(name, 0));
    }
    set("attention.layer_norm_rms_epsilon", 1e-5);
  }

  // Layers without heads of keys and values have another mixer, or none.
  void add_attention() {
    if (std::ranges::find(kinds_, Kind::attention) == kinds_.end()) {
      set("attention.head_count", uint64_t(0));
      return;
    }
    out_.heads = count({"num_attention_heads"});
    out_.kv_heads = count({"num_key_value_heads"}, out_.heads);
    const uint64_t head_dim = count({"head_dim"}, std::max<uint64_t>(out_.embedding / out_.heads, 1));
    if (head_dim > kMostHybridHeadDim)
      throw Error("{}: \"head_dim\" would be {}, which no model has", config_.where(), head_dim);
    std::vector<uint64_t> kv_heads;
    for (const Kind kind : kinds_) kv_heads.push_back(kind == Kind::attention ? out_.kv_heads : 0);
    set("attention.head_count", out_.heads);
    set("attention.head_count_kv", kv_heads);
    set("attention.key_length", head_dim);
    set("attention.value_length", head_dim);
    const bool granite = arch_ == "granitehybrid";
    const bool rotates = !granite || config_.maybe_text("position_embedding_type") == "rope";
    if (granite) {
      set("rope.scaling.finetuned", rotates);
      set("attention.scale", positive("attention_multiplier", 1));
    }
    if (rotates && (granite || arch_.starts_with("lfm2"))) add_hf_rope(config_, head_dim, out_);
  }

  // Of what is multiplied with so many heads, or "auto".
  uint64_t unless_automatic(const char* name, uint64_t usual) const {
    return config_.is_text(name) ? usual : count({name}, usual);
  }

  void check_limits() const {
    const std::vector<double> limits = config_.reals("time_step_limit");
    if (limits.empty() || (limits.size() == 2 && limits[0] == 0 && limits[1] > kMostStep)) return;
    throw Error("{}: \"time_step_limit\" is not 0 to infinity, which is not supported", config_.where());
  }

  void add_state_space() {
    check_limits();
    const uint64_t heads = count({"mamba_n_heads", "mamba_num_heads", "num_heads"});
    const uint64_t expanded = count({"mamba_expand", "expand"}, 2) * out_.embedding;
    const bool by_heads = arch_.starts_with("nemotron_h");
    const uint64_t inner = by_heads ? heads * count({"mamba_head_dim"}) : expanded;
    out_.state_groups = count({"mamba_n_groups", "n_groups"}, 1);
    set("ssm.time_step_rank", heads);
    set("ssm.inner_size", inner);
    set("ssm.group_count", out_.state_groups);
    set("ssm.state_size", count({"mamba_d_state", "ssm_state_size", "state_size"}));
    set("ssm.conv_kernel", count({"mamba_d_conv", "conv_kernel"}, 4));
  }

  void add_selective_scan() {
    const uint64_t expanded = count({"mamba_expand", "expand"}, 2) * out_.embedding;
    const bool alone = arch_ == "mamba";
    set("ssm.inner_size", alone ? count({"intermediate_size"}, expanded) : expanded);
    set("ssm.state_size", count({"mamba_d_state", "state_size"}, 16));
    set("ssm.conv_kernel", count({"mamba_d_conv", "conv_kernel"}, 4));
    set("ssm.time_step_rank",
        unless_automatic(alone ? "time_step_rank" : "mamba_dt_rank", (out_.embedding + 15) / 16));
  }

  // LFM2 may say a width of which a part is meant.
  uint64_t adjusted_width() const {
    uint64_t width = count({"block_ff_dim", "intermediate_size"});
    if (arch_ != "lfm2" || !config_.maybe_flag("block_auto_adjust_ff_dim").value_or(true)) return width;
    width = 2 * width / 3;
    const double factor = config_.maybe_real("block_ffn_dim_multiplier").value_or(1);
    if (!(factor > 0 && factor < 1024))
      throw Error("{}: \"block_ffn_dim_multiplier\" is {}", config_.where(), factor);
    const uint64_t multiple = count({"block_multiple_of"}, 256);
    return (uint64_t(factor * double(width)) + multiple - 1) / multiple * multiple;
  }

  void add_mlps() {
    if (arch_.starts_with("mamba")) {
      set("feed_forward_length", uint64_t(0));
      return;
    }
    if (arch_.starts_with("nemotron_h")) return add_plain_mlps();
    if (arch_ == "granitehybrid") {
      set("embedding_scale", positive("embedding_multiplier", 1));
      set("residual_scale", positive("residual_multiplier", 1));
      set("logit_scale", positive("logits_scaling", 1));
      if (config_.maybe_number("num_local_experts").value_or(0) == 0) {
        set("feed_forward_length", count({"shared_intermediate_size"}));
        return;
      }
    }
    set("feed_forward_length", adjusted_width());
    if (arch_ == "jamba" && config_.maybe_number("num_experts").value_or(16) <= 1) return;
    add_hf_experts(config_, out_);
  }

  void add_plain_mlps() {
    if (config_.maybe_text("mlp_hidden_act").value_or("relu2") != "relu2")
      throw Error("{}: \"mlp_hidden_act\" is {}; only relu2 is supported", config_.where(),
                  in_quotes(*config_.maybe_text("mlp_hidden_act")));
    const bool experts = arch_ == "nemotron_h_moe";
    if (experts && std::ranges::find(kinds_, Kind::mlp) != kinds_.end())
      throw Error("{}: \"layers_block_type\" has both moe and mlp, which is not supported", config_.where());
    const uint64_t width =
        experts ? count({"moe_intermediate_size"}) : count({"intermediate_size"}, std::optional<uint64_t>(1));
    std::vector<uint64_t> widths;
    for (const Kind kind : kinds_) widths.push_back(kind == Kind::mlp || kind == Kind::experts ? width : 0);
    set("feed_forward_length", widths);
    if (!experts) return;
    if (config_.has("moe_latent_size")) set("moe_latent_size", count({"moe_latent_size"}));
    add_hf_experts(config_, out_);
  }

  const HfObject& config_;
  HfConfig& out_;
  std::string_view arch_;
  std::vector<Kind> kinds_;
};

}  // namespace

bool is_hf_hybrid(const HfFamily& family) {
  constexpr std::string_view kHybrids[] = {"lfm2",           "lfm2moe", "granitehybrid", "nemotron_h",
                                           "nemotron_h_moe", "mamba",   "mamba2",        "jamba"};
  return std::ranges::find(kHybrids, family.architecture) != std::end(kHybrids);
}

bool has_hf_experts(const HfObject& config) {
  const std::vector<Kind> kinds = listed_kinds(config);
  return std::ranges::find(kinds, Kind::experts) != kinds.end();
}

void add_hf_hybrid(const HfObject& config, HfConfig& out) {
  Hybrid(config, out).convert();
}

}  // namespace quire
