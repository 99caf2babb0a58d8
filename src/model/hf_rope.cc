#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"
#include "model/hf_config.h"
#include "model/model_file.h"

namespace quire {
namespace {

constexpr double kMaxReal = 1e15;  // of anything about positions; fits in a whole number

// How positions are rotated, from either way of writing it down: Transformers 5 has all of it in
// "rope_parameters" (per kind of layer where they differ), earlier ones a scaling and loose values beside it.
class Rope {
 public:
  Rope(const HfObject& config, uint64_t head_dim, HfConfig& out)
      : config_(config),
        scaling_(rope_object(config)),
        full_(scaling_.maybe_object("full_attention").value_or(scaling_)),
        out_(out) {
    const double share = real("partial_rotary_factor", real("rotary_pct", out.family->rotated));
    dims_ = uint64_t(double(head_dim) * std::clamp(share, 0.0, 1.0));
    if (is_hf_latent(*out.family)) dims_ = head_dim;  // the part that rotates is all that is asked about
    if (config.has("rotary_dim")) dims_ = std::min(hf_count(config, {"rotary_dim"}), head_dim);
    if (dims_ < 2 || dims_ % 2 != 0)
      throw Error("{}: {} of {} dimensions of a head would be rotated", config_.where(), dims_, head_dim);
    theta_ = real("rope_theta", real("rotary_emb_base", out.family->rope_theta));
  }

  void convert() {
    set("rope.dimension_count", dims_);
    set("rope.freq_base", theta_);
    const std::string_view architecture = out_.family->architecture;
    if (architecture == "gemma3" || architecture == "gemma3n") set("rope.freq_base_swa", local_theta(10000));
    if (out_.family->model_type == "olmo3") set("rope.freq_base_swa", local_theta(theta_));
    const std::string type = kind(full_);
    if (full_.has("llama_4_scaling_beta")) add_temperature(type);
    if (type == "default" || type == "mrope") return;  // all positions of a text's token are the same
    if (type == "dynamic" && full_.has("alpha")) return add_alpha();
    if (type == "linear") return add_linear();
    if (type == "llama3") return add_llama3();
    if (type == "yarn") return add_yarn();
    if (type == "longrope" || type == "su") return add_longrope();
    throw Error(
        "{}: positions scaled by {} are not supported; default, linear, llama3, yarn and longrope are",
        config_.where(), in_quotes(type));
  }

 private:
  static HfObject rope_object(const HfObject& config) {
    for (const char* key : {"rope_parameters", "rope_scaling"})
      if (auto object = config.maybe_object(key)) return *std::move(object);
    return HfObject(Json::object(), config.where());
  }

  static std::string kind(const HfObject& rope) {
    if (auto type = rope.maybe_text("rope_type")) return *type;
    return rope.maybe_text("type").value_or("default");
  }

  // A value of the scaling, or else one beside it.
  double real(const char* key, double usual) const {
    const double value = full_.maybe_real(key).value_or(config_.maybe_real(key).value_or(usual));
    if (!(value > 0) || value > kMaxReal) throw Error("{}: \"{}\" is {}", full_.where(), key, value);
    return value;
  }

  void add_temperature(const std::string& type) {
    if (type != "yarn")
      throw Error("{}: \"llama_4_scaling_beta\" is not supported with positions scaled by {}", full_.where(),
                  in_quotes(type));
    set("attention.temperature_scale", full_.maybe_real("llama_4_scaling_beta").value_or(0));
  }

  // Hunyuan: a larger base, whatever the length.
  void add_alpha() {
    const double dims = double(dims_);
    if (dims_ <= 2) throw Error("{}: \"alpha\" of {} dimensions", full_.where(), dims_);
    set("rope.freq_base", theta_ * std::pow(real("alpha", 1), dims / (dims - 2)));
  }

  double local_theta(double usual) const {
    if (const auto sliding = scaling_.maybe_object("sliding_attention")) {
      if (kind(*sliding) != "default")
        throw Error("{}: scaled positions in layers with a window are not supported", sliding->where());
      return sliding->maybe_real("rope_theta").value_or(usual);
    }
    return config_.maybe_real("rope_local_base_freq").value_or(usual);
  }

  uint64_t original_context() const {
    const uint64_t context = context_length();
    const uint64_t original = uint64_t(real("original_max_position_embeddings", double(context)));
    if (original < 2) throw Error("{}: \"original_max_position_embeddings\" is {}", full_.where(), original);
    return original;
  }
  uint64_t context_length() const {
    return out_.metadata.number(fmt::format("{}.context_length", out_.family->architecture));
  }
  double factor() const { return real("factor", double(context_length()) / double(original_context())); }

  void set(std::string_view key, MetadataValue value) {
    out_.metadata.set(fmt::format("{}.{}", out_.family->architecture, key), std::move(value));
  }

  void add_linear() {
    set("rope.scaling.type", std::string("linear"));
    set("rope.scaling.factor", real("factor", 1));
  }

  // Low frequencies are divided by `factor`, high ones are kept, those between are blended.
  void add_llama3() {
    const double factor = real("factor", 8);
    const double low = real("low_freq_factor", 1);
    const double high = real("high_freq_factor", 4);
    const double original = real("original_max_position_embeddings", 8192);
    if (high <= low) throw Error("{}: \"high_freq_factor\" is not above \"low_freq_factor\"", full_.where());
    std::vector<float> divisors;
    for (uint64_t i = 0; i < dims_; i += 2) {
      const double wavelength = 2 * std::numbers::pi * std::pow(theta_, double(i) / double(dims_));
      const double blend = std::clamp((original / wavelength - low) / (high - low), 0.0, 1.0);
      divisors.push_back(float(1 / ((1 - blend) / factor + blend)));
    }
    out_.computed_tensors.emplace_back("rope_freqs.weight", std::move(divisors));
  }

  void add_yarn() {
    set("rope.scaling.type", std::string("yarn"));
    set("rope.scaling.factor", factor());
    set("rope.scaling.original_context_length", original_context());
    if (const auto beta = full_.maybe_real("beta_fast")) set("rope.scaling.yarn_beta_fast", *beta);
    if (const auto beta = full_.maybe_real("beta_slow")) set("rope.scaling.yarn_beta_slow", *beta);
    if (const auto given = full_.maybe_real("attention_factor")) set("rope.scaling.yarn_attn_factor", *given);
    if (const auto own = full_.maybe_real("mscale_all_dim"); own && *own != 0)
      set("rope.scaling.yarn_log_multiplier", is_hf_latent(*out_.family) ? 0.1 * *own : *own);
    if (const auto truncate = full_.maybe_flag("truncate"))
      out_.metadata.set("quire.rope.yarn_truncate", *truncate);
    const double attention = yarn_attention_factor();
    if (attention != 0.1 * std::log(factor()) + 1)
      out_.metadata.set("quire.rope.attention_factor", attention);
  }

  double yarn_growth(double scale) const { return factor() <= 1 ? 1 : 0.1 * scale * std::log(factor()) + 1; }

  double yarn_attention_factor() const {
    if (const auto given = full_.maybe_real("attention_factor")) return *given;
    const double scale = full_.maybe_real("mscale").value_or(0);
    const double scale_all = full_.maybe_real("mscale_all_dim").value_or(0);
    return scale != 0 && scale_all != 0 ? yarn_growth(scale) / yarn_growth(scale_all) : yarn_growth(1);
  }

  void add_longrope() {
    const double original = double(original_context());
    const double usual = factor() <= 1 ? 1 : std::sqrt(1 + std::log(factor()) / std::log(original));
    set("rope.scaling.type", std::string("longrope"));
    set("rope.scaling.original_context_length", original_context());
    set("rope.scaling.attn_factor", real("attention_factor", real("long_mscale", usual)));
    add_factors("long_factor", "rope_factors_long.weight");
    add_factors("short_factor", "rope_factors_short.weight");
  }

  void add_factors(const char* key, const char* tensor) {
    const auto factors = full_.reals(key);
    if (factors.size() != dims_ / 2)
      throw Error("{}: \"{}\" has {} values instead of {}", full_.where(), key, factors.size(), dims_ / 2);
    out_.computed_tensors.emplace_back(tensor, std::vector<float>(factors.begin(), factors.end()));
  }

  const HfObject& config_;
  HfObject scaling_;
  HfObject full_;  // of the layers without a window
  HfConfig& out_;
  uint64_t dims_;
  double theta_;
};

// One bool per layer: does it rotate positions?
std::vector<bool> rotated_layers(const HfObject& config, uint64_t layers) {
  std::vector<bool> rotated(layers, true);
  if (const auto listed = config.numbers("no_rope_layers"); !listed.empty()) {  // 1 where there is rotation
    if (listed.size() != layers)
      throw Error("{}: \"no_rope_layers\" has {} values for {} layers", config.where(), listed.size(),
                  layers);
    for (uint64_t i = 0; i < layers; ++i) rotated[i] = listed[i] != 0;
    return rotated;
  }
  const uint64_t interval = config.maybe_number("no_rope_layer_interval").value_or(4);
  for (uint64_t i = 0; i < layers && interval != 0; ++i) rotated[i] = (i + 1) % interval != 0;
  return rotated;
}

// n of "all but every n-th": a number, or a text such as "LLLG".
uint64_t window_period(const HfObject& config, const HfFamily& family, const char* key) {
  if (!config.has(key)) return family.window_period;
  if (config.is_text(key)) return std::max<uint64_t>(config.maybe_text(key).value_or("").size(), 1);
  return std::max<uint64_t>(config.number(key), 1);
}

// One bool per layer: does it look through a window?
std::vector<bool> window_layers(const HfObject& config, const HfFamily& family, uint64_t layers) {
  std::vector<bool> window(layers, true);
  if (family.window == HfWindow::all || family.window == HfWindow::all_enabled) return window;
  if (const auto types = config.texts("layer_types"); !types.empty()) {
    if (types.size() != layers)
      throw Error("{}: \"layer_types\" has {} values for {} layers", config.where(), types.size(), layers);
    for (uint64_t i = 0; i < layers; ++i) {
      window[i] = types[i] == "sliding_attention";
      const bool chunked = family.architecture == "llama4" && types[i] == "chunked_attention";
      const bool hybrid = family.architecture.starts_with("qwen35") || family.architecture == "qwen3next";
      const bool recurrent = hybrid && types[i] == "linear_attention";
      if (!window[i] && !chunked && !recurrent && types[i] != "full_attention")
        throw Error("{}: layers of type {} are not supported", config.where(), in_quotes(types[i]));
    }
    return window;
  }
  const uint64_t late = config.maybe_number("max_window_layers").value_or(28);
  const char* period_key =
      config.has("sliding_window_pattern") ? "sliding_window_pattern" : "_sliding_window_pattern";
  const uint64_t period = window_period(config, family, period_key);
  const std::vector<bool> rotated = rotated_layers(config, layers);
  for (uint64_t i = 0; i < layers; ++i) {
    if (family.window == HfWindow::late) window[i] = i >= late;
    if (family.window == HfWindow::rotated_not) window[i] = !rotated[i];
    if (family.window == HfWindow::alternate) window[i] = i % 2 == 0;
    if (family.window == HfWindow::period) window[i] = (i + 1) % period != 0;
  }
  return window;
}

// As GGUF writes it: n if all layers but every n-th have a window, else one bool per layer.
MetadataValue window_pattern(const std::vector<bool>& window) {
  for (uint64_t period = 2; period <= window.size(); ++period) {
    bool fits = true;
    for (uint64_t i = 0; i < window.size(); ++i) fits = fits && window[i] == ((i + 1) % period != 0);
    if (fits) return period;
  }
  return window;
}

}  // namespace

void add_hf_rope(const HfObject& config, uint64_t head_dim, HfConfig& out) {
  Rope(config, head_dim, out).convert();
  if (out.family->architecture == "smollm3")
    out.metadata.set("smollm3.attention.rope_pattern", rotated_layers(config, out.layers));
  if (out.family->architecture == "llama4")
    out.metadata.set("quire.rope_pattern", rotated_layers(config, out.layers));
}

void add_hf_window(const HfObject& config, HfConfig& out) {
  const HfFamily& family = *out.family;
  if (family.window == HfWindow::none) {
    const std::vector<bool> windows = window_layers(config, family, out.layers);
    if (config.has("layer_types") && config.maybe_number("sliding_window").value_or(0) > 0 &&
        std::ranges::find(windows, true) != windows.end())
      throw Error("{}: windows are not supported for {}", config.where(), family.model_type);
    return;
  }
  const bool behind_flag = family.window == HfWindow::late || family.window == HfWindow::all_enabled ||
                           family.window == HfWindow::rotated_not;
  const bool enabled = !behind_flag || config.maybe_flag("use_sliding_window").value_or(false);
  const uint64_t tokens = enabled ? config.maybe_number("sliding_window").value_or(0) : 0;
  const std::vector<bool> window = window_layers(config, family, out.layers);
  const bool any = tokens > 0 && std::ranges::find(window, true) != window.end();
  const std::string prefix = fmt::format("{}.attention.sliding_window", family.architecture);
  if (any) {
    out.metadata.set(prefix, tokens);
    out.metadata.set(prefix + "_pattern", window_pattern(window));
  } else if (!behind_flag) {
    out.metadata.set(prefix, uint64_t(0));  // without it, readers assume the usual window of the family
  }
}

}  // namespace quire
