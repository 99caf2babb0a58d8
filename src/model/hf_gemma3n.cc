#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "model/hf_config.h"

// A config.json of Gemma 3n in GGUF's words, where no other family has the same.

namespace quire {
namespace {

constexpr uint64_t kMostStreams = 16;
constexpr uint64_t kMaxInput = 1 << 16;  // of one layer
constexpr size_t kSparseLayers = 10;     // when config.json does not say
constexpr double kUsualSparsity = 0.95;

// How many standard deviations above the mean of a normal distribution there is so much less: by Newton's steps, from where the
// density is high enough for them.
double deviations(double share) {
  double x = 0;
  for (int i = 0; i < 60; ++i) {
    const double below = 0.5 * std::erfc(-x / std::sqrt(2.0));
    const double density = std::exp(-x * x / 2) / std::sqrt(2 * 3.141592653589793);
    const double step = (share - below) / density;
    x += step > 1 ? 1 : step < -1 ? -1 : step;
  }
  return x;
}

class Gemma3n {
 public:
  Gemma3n(const HfObject& config, HfConfig& out) : config_(config), out_(out) {}

  void convert() {
    if (config_.maybe_flag("attention_bias").value_or(false))
      refuse("attention_bias", "is true, which is not supported");
    if (!config_.maybe_flag("altup_correct_scale").value_or(true))
      refuse("altup_correct_scale", "is false, which is not supported");
    out_.streams = hf_count(config_, {"altup_num_inputs"}, 4, kMostStreams);
    if (out_.streams < 2) refuse("altup_num_inputs", "is 1: known are models of several streams");
    set("altup.num_inputs", out_.streams);
    set("altup.active_idx", config_.maybe_number("altup_active_idx").value_or(0));
    set("embedding_length_per_layer_input",
        hf_count(config_, {"hidden_size_per_layer_input"}, 256, kMaxInput));
    set("final_logit_softcapping", config_.maybe_real("final_logit_softcapping").value_or(0));
    const uint64_t shared = config_.maybe_number("num_kv_shared_layers").value_or(15);
    if (shared > 0 && shared >= out_.layers)
      refuse("num_kv_shared_layers", fmt::format("is {}, of {} layers", shared, out_.layers));
    set("attention.shared_kv_layers", shared);
    add_widths();
    add_spreads();
  }

 private:
  [[noreturn]] void refuse(const char* key, const std::string& why) const {
    throw Error("{}: \"{}\" {}", config_.where(), key, why);
  }
  void set(std::string_view name, MetadataValue value) {
    out_.metadata.set(fmt::format("gemma3n.{}", name), std::move(value));
  }

  void add_widths() {
    std::vector<uint64_t> widths = config_.numbers("intermediate_size");
    if (widths.size() == 1) widths.resize(out_.layers, widths.front());
    if (widths.size() != out_.layers)
      refuse("intermediate_size", fmt::format("has {} values for {} layers", widths.size(), out_.layers));
    for (const uint64_t width : widths) {
      if (width == 0 || width > (1 << 24)) refuse("intermediate_size", fmt::format("has {}", width));
    }
    set("feed_forward_length", widths);
  }

  void add_spreads() {
    std::vector<double> shares = config_.reals("activation_sparsity_pattern");
    if (shares.empty()) {
      shares.resize(out_.layers);
      if (out_.layers > kSparseLayers) std::fill_n(shares.begin(), kSparseLayers, kUsualSparsity);
    }
    if (shares.size() != out_.layers)
      refuse("activation_sparsity_pattern",
             fmt::format("has {} values for {} layers", shares.size(), out_.layers));
    std::vector<double> spreads;
    for (const double share : shares) {
      if (!(share >= 0 && share < 1)) refuse("activation_sparsity_pattern", fmt::format("has {}", share));
      spreads.push_back(share == 0 ? -std::numeric_limits<double>::infinity() : deviations(share));
    }
    set("activation_sparsity_scale", spreads);
  }

  const HfObject& config_;
  HfConfig& out_;
};

}  // namespace

void add_hf_gemma3n(const HfObject& config, HfConfig& out) {
  Gemma3n(config, out).convert();
}

}  // namespace quire
