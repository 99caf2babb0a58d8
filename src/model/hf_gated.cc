// Laguna and the text of Muse Glimmer, whose attention has a gate with a matrix of its own.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "base/error.h"
#include "model/hf_config.h"
#include "model/model_file.h"

namespace quire {
namespace {

constexpr double kMostGatedTheta = 1e15;
constexpr uint64_t kMostGatedHeads = 1 << 16;
constexpr uint64_t kMostFactors = 1 << 22;  // of all layers' heads

double gated_positive(const HfObject& object, const char* key, double usual) {
  const double value = object.maybe_real(key).value_or(usual);
  if (!(value > 0) || !std::isfinite(value)) throw Error("{}: \"{}\" is {}", object.where(), key, value);
  return value;
}

// Whether every value has a gate, and not every head.
bool is_gate_of_values(const HfObject& config) {
  if (!config.has("gating")) return false;
  if (!config.is_text("gating")) {
    if (config.maybe_flag("gating").value_or(false)) return false;
    throw Error("{}: \"gating\" is false, which is not supported", config.where());
  }
  const std::string gating = *config.maybe_text("gating");
  if (gating != "per-head" && gating != "per-element")
    throw Error("{}: \"gating\" is {}; known are per-head and per-element", config.where(),
                in_quotes(gating));
  return gating == "per-element";
}

// One bool per layer; `usual` where the config lists none.
std::vector<bool> gated_windows(const HfObject& config, uint64_t layers,
                                bool (*usual)(uint64_t layer, uint64_t layers)) {
  const std::vector<std::string> kinds = config.texts("layer_types");
  if (!kinds.empty() && kinds.size() != layers)
    throw Error("{}: \"layer_types\" speaks of {} layers, but there are {}", config.where(), kinds.size(),
                layers);
  std::vector<bool> windows;
  for (uint64_t i = 0; i < layers; ++i) {
    if (!kinds.empty() && kinds[i] != "sliding_attention" && kinds[i] != "full_attention")
      throw Error("{}: \"layer_types\" has {}; known are sliding_attention and full_attention",
                  config.where(), in_quotes(kinds[i]));
    windows.push_back(kinds.empty() ? usual(i, layers) : kinds[i] == "sliding_attention");
  }
  return windows;
}

// Layers with a window rotate a share of their heads by a base of their own.
void add_window_rope(const HfObject& config, uint64_t head_dim, HfConfig& out) {
  double share = 1, theta = 10000;
  if (const auto rope = config.maybe_object("rope_parameters")) {
    if (const auto own = rope->maybe_object("sliding_attention")) {
      if (own->maybe_text("rope_type").value_or("default") != "default")
        throw Error("{}: scaled positions in layers with a window are not supported", own->where());
      share = gated_positive(*own, "partial_rotary_factor", 1);
      theta = gated_positive(*own, "rope_theta", 10000);
    }
  }
  const uint64_t rotated = uint64_t(double(head_dim) * std::min(share, 1.0));
  if (rotated < 2 || rotated % 2 != 0 || theta > kMostGatedTheta)
    throw Error("{}: layers with a window would rotate {} of {} values by the base {}", config.where(),
                rotated, head_dim, theta);
  out.metadata.set("laguna.rope.dimension_count_swa", rotated);
  out.metadata.set("laguna.rope.freq_base_swa", theta);
}

}  // namespace

void add_hf_laguna(const HfObject& config, uint64_t head_dim, HfConfig& out) {
  const std::vector<uint64_t> heads = config.numbers("num_attention_heads_per_layer");
  if (!heads.empty()) {
    if (heads.size() != out.layers)
      throw Error("{}: \"num_attention_heads_per_layer\" speaks of {} layers, but there are {}",
                  config.where(), heads.size(), out.layers);
    for (const uint64_t one : heads)
      if (one == 0 || one > kMostGatedHeads)
        throw Error("{}: \"num_attention_heads_per_layer\" has {}", config.where(), one);
    out.metadata.set("laguna.attention.head_count", heads);
  }
  const std::vector<bool> windows =
      gated_windows(config, out.layers, [](uint64_t, uint64_t) { return false; });
  const bool any = std::ranges::find(windows, true) != windows.end();
  out.metadata.set("laguna.attention.sliding_window", any ? hf_count(config, {"sliding_window"}, 512) : 0);
  out.metadata.set("laguna.attention.sliding_window_pattern", windows);
  out.metadata.set("quire.attention.gate_of_values", is_gate_of_values(config));
  add_window_rope(config, head_dim, out);
  if (config.maybe_real("moe_router_logit_softcapping").value_or(0) != 0)
    throw Error("{}: \"moe_router_logit_softcapping\" is not 0, which is not supported", config.where());
  if (config.maybe_flag("moe_apply_router_weight_on_input").value_or(false))
    throw Error("{}: \"moe_apply_router_weight_on_input\" is true, which is not supported", config.where());
}

void add_hf_muse_glimmer(const HfObject& config, uint64_t head_dim, HfConfig& out) {
  const auto set = [&](const char* key, MetadataValue value) {
    out.metadata.set(fmt::format("muse-glimmer.{}", key), std::move(value));
  };
  // A base of 0 is a layer that does not rotate: those without a window, counted from the last.
  const auto usual = [](uint64_t layer, uint64_t layers) { return (layers - 1 - layer) % 4 != 0; };
  const std::vector<bool> windows = gated_windows(config, out.layers, usual);
  const std::vector<double> bases = config.reals("layer_rope_theta");
  if (!bases.empty() && bases.size() != out.layers)
    throw Error("{}: \"layer_rope_theta\" speaks of {} layers, but there are {}", config.where(),
                bases.size(), out.layers);
  const double base = out.metadata.real("muse-glimmer.rope.freq_base");
  for (uint64_t i = 0; i < out.layers; ++i) {
    const double own = bases.empty() ? (usual(i, out.layers) ? base : 0) : bases[i];
    if (own != (windows[i] ? base : 0))
      throw Error(
          "{}: \"layer_rope_theta\" of layer {} is {}; known is that layers with a window rotate, all by one "
          "base",
          config.where(), i, own);
  }
  set("attention.sliding_window", hf_count(config, {"sliding_window"}, 2048));
  set("attention.sliding_window_pattern", windows);
  set("logit_scale", gated_positive(config, "output_multiplier", 0.19611613513818404));
  set("final_logit_softcapping", gated_positive(config, "final_logit_softcapping", 20));
  out.metadata.set("quire.post_norm_epsilon", gated_positive(config, "post_norm_eps", 1e-8));
  // As GGUF has it: the factor of queries is in a norm's weights, which the config has none of.
  if (out.layers * head_dim > kMostFactors)
    throw Error("{}: {} layers with heads of {} are more than any model has", config.where(), out.layers,
                head_dim);
  const float factor = float(gated_positive(config, "qk_scale_factor", 3.87));
  for (uint64_t i = 0; i < out.layers; ++i) {
    out.computed_tensors.emplace_back(fmt::format("blk.{}.attn_q_norm.weight", i),
                                      std::vector<float>(head_dim, factor));
    out.computed_tensors.emplace_back(fmt::format("blk.{}.attn_k_norm.weight", i),
                                      std::vector<float>(head_dim, 1.0f));
  }
}

}  // namespace quire
