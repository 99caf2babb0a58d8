#pragma once

#include <algorithm>
#include <cstdint>

namespace quire {

// How many prompt tokens a step may take so that the streams beside them still come at the wanted pace. It learns from
// the steps that were: what one without prompts takes, and what each prompt token adds.
class StepBudget {
 public:
  // `target_ms` 0: always `most`.
  StepBudget(double target_ms, uint32_t most) : target_ms_(target_ms), most_(most) {}

  uint32_t tokens(bool streams_run) const {
    if (target_ms_ <= 0 || !streams_run) return most_;
    if (per_token_ms_ <= 0) return std::min(most_, kFirstGuess);
    const double room = (target_ms_ - streams_ms_) / per_token_ms_;
    return std::clamp(uint32_t(std::max(room, 0.0)), std::min(most_, kLeast), most_);
  }

  double per_token_ms() const { return per_token_ms_; }  // of a prompt; 0: not known yet

  void learn(double step_ms, uint32_t stream_tokens, uint32_t prompt_tokens) {
    if (stream_tokens > 0 && prompt_tokens == 0) streams_ms_ = blend(streams_ms_, step_ms);
    if (prompt_tokens >= kLeast / 2) {
      const double prompts_ms = std::max(step_ms - (stream_tokens > 0 ? streams_ms_ : 0), 0.1 * step_ms);
      per_token_ms_ = blend(per_token_ms_, prompts_ms / prompt_tokens);
    }
  }

 private:
  static constexpr uint32_t kLeast = 8;  // prompts must go on even where the target cannot be met
  static constexpr uint32_t kFirstGuess = 64;
  static double blend(double old, double now) { return old <= 0 ? now : 0.7 * old + 0.3 * now; }

  double target_ms_;
  uint32_t most_;
  double streams_ms_ = 0;
  double per_token_ms_ = 0;
};

}  // namespace quire
