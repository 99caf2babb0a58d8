#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "model/hf_config.h"
#include "model/model_file.h"

// A config.json of Gemma 4 in GGUF's words.

namespace quire {
namespace {

constexpr uint64_t kMaxFullHeadDim = 1 << 16;
constexpr uint64_t kMaxFullHeads = 1 << 16;
constexpr uint64_t kMaxLayerInput = 1 << 16;  // of one layer

class Gemma4 {
 public:
  Gemma4(const HfObject& config, uint64_t head_dim, HfConfig& out)
      : config_(config), head_dim_(head_dim), out_(out), windows_(windows()) {}

  void convert() {
    if (config_.maybe_text("use_bidirectional_attention") == "all")
      refuse("use_bidirectional_attention", "is \"all\": such models do not write texts");
    if (config_.maybe_flag("attention_bias").value_or(false))
      refuse("attention_bias", "is true, which is not supported");
    add_heads();
    add_rope();
    add_sharing();
    set("attention.keys_are_values", config_.maybe_flag("attention_k_eq_v").value_or(false));
    set("final_logit_softcapping", config_.maybe_real("final_logit_softcapping").value_or(0));
    const bool has_inputs = out_.family->model_type == "gemma4_text";
    const uint64_t width = config_.maybe_number("hidden_size_per_layer_input").value_or(has_inputs ? 256 : 0);
    if (width > kMaxLayerInput) refuse("hidden_size_per_layer_input", fmt::format("is {}", width));
    set("embedding_length_per_layer_input", width);
  }

 private:
  [[noreturn]] void refuse(const char* key, const std::string& why) const {
    throw Error("{}: \"{}\" {}", config_.where(), key, why);
  }
  void set(std::string_view name, MetadataValue value) {
    out_.metadata.set(fmt::format("gemma4.{}", name), std::move(value));
  }

  // One bool per layer; the last one has none, whatever is said.
  std::vector<bool> windows() const {
    std::vector<bool> windows(out_.layers);
    const std::vector<std::string> kinds = config_.texts("layer_types");
    if (!kinds.empty() && kinds.size() != out_.layers)
      refuse("layer_types", fmt::format("speaks of {} layers, but there are {}", kinds.size(), out_.layers));
    for (uint64_t i = 0; i < out_.layers; ++i) {
      windows[i] = kinds.empty() ? (i + 1) % 6 != 0 : kinds[i] == "sliding_attention";
      if (!kinds.empty() && !windows[i] && kinds[i] != "full_attention")
        refuse("layer_types",
               fmt::format("has {}; known are sliding_attention and full_attention", in_quotes(kinds[i])));
    }
    windows.back() = false;
    return windows;
  }

  // What the layers without a window have: said once, or layer by layer.
  uint64_t of_full_layers(const char* key, const char* in_layer, uint64_t usual, uint64_t most) const {
    if (config_.has(key)) return hf_count(config_, {key}, {}, most);
    const auto layers = config_.maybe_object("per_layer_config");
    std::optional<uint64_t> value;
    for (uint64_t i = 0; layers && i < out_.layers; ++i) {
      if (windows_[i]) continue;
      const auto layer = layers->maybe_object(std::to_string(i).c_str());
      const uint64_t own = layer ? hf_count(*layer, {in_layer}, usual, most) : usual;
      if (value.value_or(own) != own)
        refuse("per_layer_config",
               fmt::format("has \"{}\" {} and {}, which is not supported", in_layer, *value, own));
      value = own;
    }
    return value.value_or(usual);
  }

  void add_heads() {
    const uint64_t full = full_dim_ = of_full_layers(
        "global_head_dim", "head_dim", config_.has("per_layer_config") ? head_dim_ : 512, kMaxFullHeadDim);
    set("attention.key_length", full);
    set("attention.value_length", full);
    set("attention.key_length_swa", head_dim_);
    set("attention.value_length_swa", head_dim_);
    // The number of KV heads differs only where keys are values, but in a family that is always so.
    const bool may_differ = config_.maybe_flag("attention_k_eq_v").value_or(false) ||
                            out_.family->model_type != "gemma4_text" || config_.has("per_layer_config");
    const uint64_t heads = may_differ ? of_full_layers("num_global_key_value_heads", "num_key_value_heads",
                                                       out_.kv_heads, kMaxFullHeads)
                                      : out_.kv_heads;
    if (heads != out_.kv_heads) {
      std::vector<uint64_t> each;
      for (const bool window : windows_) each.push_back(window ? out_.kv_heads : heads);
      set("attention.head_count_kv", each);
    }
    set("attention.sliding_window", hf_count(config_, {"sliding_window"}, 512));
    set("attention.sliding_window_pattern", windows_);
  }

  double positive(const HfObject& from, const char* key, double usual) const {
    const double value = from.maybe_real(key).value_or(usual);
    if (!(value > 0) || value > 1e15) throw Error("{}: \"{}\" is {}", from.where(), key, value);
    return value;
  }

  // Of the layers without a window only the first pairs of a head rotate; the others are divided until they stand still.
  void add_rope() {
    const HfObject none(Json::object(), config_.where());
    const HfObject all = config_.maybe_object("rope_parameters").value_or(none);
    const HfObject sliding = all.maybe_object("sliding_attention").value_or(none);
    const HfObject full = all.maybe_object("full_attention").value_or(none);
    const std::string kind = full.maybe_text("rope_type").value_or("proportional");
    if (sliding.maybe_text("rope_type").value_or("default") != "default")
      throw Error("{}: positions scaled by {} are not supported; default are", sliding.where(),
                  in_quotes(*sliding.maybe_text("rope_type")));
    if (kind != "proportional" && kind != "default")
      throw Error("{}: positions scaled by {} are not supported; default and proportional are", full.where(),
                  in_quotes(kind));
    set("rope.dimension_count", full_dim_);
    set("rope.dimension_count_swa", head_dim_);
    set("rope.freq_base", positive(full, "rope_theta", 1e6));
    set("rope.freq_base_swa", positive(sliding, "rope_theta", 1e4));
    if (kind == "default") return;
    const double share = positive(full, "partial_rotary_factor", full.has("rope_type") ? 1 : 0.25);
    const uint64_t pairs = full_dim_ / 2;
    const uint64_t rotated = std::min(pairs, uint64_t(std::min(share, 1.0) * double(full_dim_)) / 2);
    const double factor = positive(full, "factor", 1);
    std::vector<float> divisors(pairs, 1e30f);
    std::fill_n(divisors.begin(), rotated, float(factor));
    out_.computed_tensors.emplace_back("rope_freqs.weight", std::move(divisors));
  }

  void add_sharing() {
    const uint64_t shared = config_.maybe_number("num_kv_shared_layers").value_or(0);
    if (shared > 0 && shared >= out_.layers)
      refuse("num_kv_shared_layers", fmt::format("is {}, of {} layers", shared, out_.layers));
    set("attention.shared_kv_layers", shared);
    if (!config_.maybe_flag("use_double_wide_mlp").value_or(false) || shared == 0) return;
    const uint64_t width = hf_count(config_, {"intermediate_size"});
    std::vector<uint64_t> widths(out_.layers, width);
    std::fill(widths.end() - ptrdiff_t(shared), widths.end(), 2 * width);
    set("feed_forward_length", widths);
  }

  const HfObject& config_;
  uint64_t head_dim_;  // of the layers with a window
  uint64_t full_dim_ = 0;
  HfConfig& out_;
  std::vector<bool> windows_;
};

}  // namespace

void add_hf_gemma4(const HfObject& config, uint64_t head_dim, HfConfig& out) {
  Gemma4(config, head_dim, out).convert();
}

}  // namespace quire
