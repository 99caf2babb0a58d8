// MiMo-V2-Flash, as Transformers writes its config and as its first files have it.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "base/error.h"
#include "model/hf_config.h"

namespace quire {
namespace {

constexpr uint64_t kMostMimoHeadDim = 1 << 16;
constexpr double kMostTheta = 1e15;

// One bool per layer.
std::vector<bool> window_layers_of(const HfObject& config, uint64_t layers) {
  std::vector<bool> window;
  if (config.has("hybrid_layer_pattern")) {
    for (const uint64_t one : config.numbers("hybrid_layer_pattern")) window.push_back(one == 1);
  } else if (config.has("layer_types")) {
    for (const std::string& kind : config.texts("layer_types")) window.push_back(kind == "sliding_attention");
  } else {
    for (uint64_t i = 0; i < layers; ++i) window.push_back(i > 0 && (i + 1) % 6 != 0);
  }
  if (window.size() != layers)
    throw Error("{}: layers with a window are said of {} layers, but there are {}", config.where(),
                window.size(), layers);
  return window;
}

double window_theta(const HfObject& config) {
  double theta = config.maybe_real("swa_rope_theta").value_or(10000);
  const auto rope = config.maybe_object("rope_parameters");
  if (!rope) return theta;
  const auto own = rope->maybe_object("sliding_attention"), full = rope->maybe_object("full_attention");
  if (!own || !full) return theta;
  if (own->maybe_real("partial_rotary_factor") != full->maybe_real("partial_rotary_factor"))
    throw Error("{}: layers with and without a window rotate different shares, which is not supported",
                rope->where());
  if (own->maybe_text("rope_type").value_or("default") != "default")
    throw Error("{}: scaled positions in layers with a window are not supported", own->where());
  theta = own->maybe_real("rope_theta").value_or(theta);
  return theta;
}

}  // namespace

void add_hf_mimo(const HfObject& config, HfConfig& out) {
  const auto set = [&](const char* key, MetadataValue value) {
    out.metadata.set(fmt::format("mimo2.{}", key), std::move(value));
  };
  const std::vector<bool> window = window_layers_of(config, out.layers);
  const uint64_t more = hf_count(config, {"swa_num_key_value_heads"}, 2 * out.kv_heads);
  std::vector<uint64_t> kv_heads;
  for (const bool has_window : window) kv_heads.push_back(has_window ? more : out.kv_heads);
  set("attention.head_count_kv", kv_heads);
  set("attention.value_length", hf_count(config, {"v_head_dim"}, 128, kMostMimoHeadDim));
  set("attention.sliding_window_pattern", window);
  // What is seen beside the token's own position, or with it.
  set("attention.sliding_window", config.has("sliding_window_size")
                                      ? hf_count(config, {"sliding_window_size"}) + 1
                                      : hf_count(config, {"sliding_window"}, 129));
  if (const auto epsilon = config.maybe_real("layernorm_epsilon")) {
    if (!(*epsilon > 0) || !std::isfinite(*epsilon))
      throw Error("{}: \"layernorm_epsilon\" is {}", config.where(), *epsilon);
    set("attention.layer_norm_rms_epsilon", *epsilon);
  }
  const double theta = window_theta(config);
  if (!(theta > 0) || theta > kMostTheta) throw Error("{}: \"rope_theta\" is {}", config.where(), theta);
  set("rope.freq_base_swa", theta);
  const double scale = config.maybe_real("attention_value_scale").value_or(1);
  if (!(scale > 0) || !std::isfinite(scale))
    throw Error("{}: \"attention_value_scale\" is {}", config.where(), scale);
  set("attention.value_scale", scale);
}

}  // namespace quire
