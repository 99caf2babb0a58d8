#include <cmath>

#include "base/error.h"
#include "model/hf_config.h"

// A config.json of Falcon-H1 in GGUF's words, where no other family has the same: Mamba-2 beside attention, and factors on what
// nearly every matrix gives, which GGUF has in the matrices.

namespace quire {
namespace {

constexpr double kMostLimit = 1e300;

class FalconH1 {
 public:
  FalconH1(const HfObject& config, HfConfig& out) : config_(config), out_(out) {}

  void convert() {
    for (const char* flag : {"attention_bias", "mlp_bias", "projectors_bias", "mamba_proj_bias"}) {
      if (config_.maybe_flag(flag).value_or(false)) refuse(flag, "is true, which is not supported");
    }
    if (config_.maybe_flag("mamba_rms_norm").value_or(false) &&
        config_.maybe_flag("mamba_norm_before_gate").value_or(true))
      refuse("mamba_norm_before_gate", "is true, which is not supported");
    const std::vector<double> limits = config_.reals("time_step_limit");
    if (!limits.empty() && !(limits.size() == 2 && limits[0] == 0 && limits[1] > kMostLimit))
      refuse("time_step_limit", "is not 0 to infinity, which is not supported");
    add_mamba();
    add_factors();
  }

 private:
  [[noreturn]] void refuse(const char* key, const std::string& why) const {
    throw Error("{}: \"{}\" {}", config_.where(), key, why);
  }
  void set(std::string_view name, uint64_t value) {
    out_.metadata.set(fmt::format("falcon-h1.{}", name), value);
  }

  void add_mamba() {
    const uint64_t expanded = hf_count(config_, {"mamba_expand"}, 2) * out_.embedding;
    inner_ = hf_count(config_, {"mamba_d_ssm"}, expanded);
    heads_ = hf_count(config_, {"mamba_n_heads"}, 128);
    out_.state_groups = hf_count(config_, {"mamba_n_groups"}, 1);
    state_ = hf_count(config_, {"mamba_d_state"}, 256);
    if (inner_ % heads_ != 0) refuse("mamba_n_heads", fmt::format("is {}, for {} values", heads_, inner_));
    set("ssm.inner_size", inner_);
    set("ssm.time_step_rank", heads_);
    set("ssm.group_count", out_.state_groups);
    set("ssm.state_size", state_);
    set("ssm.conv_kernel", hf_count(config_, {"mamba_d_conv"}, 4));
  }

  float factor(const char* key) const { return checked(key, config_.maybe_real(key).value_or(1)); }
  float checked(const char* key, double value) const {
    if (!std::isfinite(value) || value == 0 || std::fabs(value) > 1e15)
      refuse(key, fmt::format("is {}", value));
    return float(value);
  }
  std::vector<float> factors(const char* key, size_t count) const {
    const std::vector<double> said = config_.reals(key);
    if (!said.empty() && said.size() != count)
      refuse(key, fmt::format("has {} values instead of {}", said.size(), count));
    std::vector<float> values(count, 1.0f);
    for (size_t i = 0; i < said.size(); ++i) values[i] = checked(key, said[i]);
    return values;
  }
  void multiply(const char* ending, float factor) { multiply(ending, {{0, factor}}); }
  void multiply(const char* ending, std::vector<HfFactor> rows) {
    for (const HfFactor& one : rows) {
      if (one.factor != 1) return out_.factors.emplace_back(ending, std::move(rows)), void();
    }
  }

  void add_factors() {
    const float in = factor("attention_in_multiplier"), mamba_in = factor("ssm_in_multiplier");
    multiply(".attn_q.weight", in);
    multiply(".attn_k.weight", in * factor("key_multiplier"));
    multiply(".attn_v.weight", in);
    multiply(".attn_output.weight", factor("attention_out_multiplier"));
    const std::vector<float> mlp = factors("mlp_multipliers", 2), mamba = factors("ssm_multipliers", 5);
    multiply(".ffn_gate.weight", mlp[0]);
    multiply(".ffn_down.weight", mlp[1]);
    const uint64_t shared = out_.state_groups * state_;
    multiply(".ssm_in.weight", {{inner_, mamba_in * mamba[0]},
                                {inner_, mamba_in * mamba[1]},
                                {shared, mamba_in * mamba[2]},
                                {shared, mamba_in * mamba[3]},
                                {heads_, mamba_in * mamba[4]}});
    multiply(".ssm_out.weight", factor("ssm_out_multiplier"));
    if (out_.tied && factor("embedding_multiplier") != factor("lm_head_multiplier"))
      refuse("lm_head_multiplier", "is not the embedding's, which it is tied to: that is not supported");
    multiply("token_embd.weight", factor("embedding_multiplier"));
    if (!out_.tied) multiply("output.weight", factor("lm_head_multiplier"));
  }

  const HfObject& config_;
  HfConfig& out_;
  uint64_t inner_ = 0, heads_ = 0, state_ = 0;
};

}  // namespace

void add_hf_falcon_h1(const HfObject& config, HfConfig& out) {
  FalconH1(config, out).convert();
}

}  // namespace quire
