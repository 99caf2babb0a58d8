#pragma once

#include <algorithm>
#include <deque>
#include <mutex>

#include "engine/telemetry.h"

namespace quire {

// What the machine can do at most, as the yardstick measured it; 0: not measured.
struct MachineLimits {
  double read_gb_s = 0;
  double int8_gops = 0;
  double f32_gflops = 0;
  double bf16_gflops = 0;
  uint32_t threads = 0;

  // The least time that so much work takes, in ms, and what bounds it.
  double memory_ms(const StepCost& cost) const { return read_gb_s > 0 ? cost.bytes() / read_gb_s / 1e6 : 0; }
  double arithmetic_ms(const StepCost& cost) const {
    const double int8 = int8_gops > 0 ? cost.int8_ops / int8_gops / 1e6 : 0;
    const double bf16 = bf16_gflops > 0 ? cost.bf16_ops / bf16_gflops / 1e6 : 0;
    return int8 + bf16 + (f32_gflops > 0 ? cost.f32_ops / f32_gflops / 1e6 : 0);
  }
  double least_ms(const StepCost& cost) const { return std::max(memory_ms(cost), arithmetic_ms(cost)); }
};

// What was done in the last moments. The engine's thread adds, any thread may look.
class RateMeter {
 public:
  explicit RateMeter(const MachineLimits& limits) : limits_(limits) {}

  struct Rates {
    double prompt_tok_s = 0, answer_tok_s = 0;
    double bandwidth_share = 0, arithmetic_share = 0;
  };

  void add(const StepRecord& step) {
    const std::lock_guard lock(mutex_);
    steps_.push_back(step);
    forget(step.begin);
  }

  Rates rates(Clock::time_point now) {
    const std::lock_guard lock(mutex_);
    forget(now);
    Rates rates;
    for (const StepRecord& step : steps_) {
      rates.prompt_tok_s += step.prompt_tokens;
      rates.answer_tok_s += step.stream_tokens;
      rates.bandwidth_share += limits_.memory_ms(step.cost);
      rates.arithmetic_share += limits_.arithmetic_ms(step.cost);
    }
    if (steps_.empty()) return rates;
    const double ms = std::max(milliseconds_between(steps_.front().begin, now), steps_.front().ms);
    rates.prompt_tok_s *= 1000 / ms;
    rates.answer_tok_s *= 1000 / ms;
    rates.bandwidth_share = std::min(1.0, rates.bandwidth_share / ms);
    rates.arithmetic_share = std::min(1.0, rates.arithmetic_share / ms);
    return rates;
  }

  const MachineLimits& limits() const { return limits_; }

 private:
  static constexpr std::chrono::milliseconds kWindow{2000};
  // Always keeps one that lasts longer than the window.
  void forget(Clock::time_point now) {
    const auto end = [](const StepRecord& s) {
      return s.begin +
             std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double, std::milli>(s.ms));
    };
    while (!steps_.empty() && end(steps_.front()) + kWindow < now) steps_.pop_front();
  }

  const MachineLimits limits_;
  std::mutex mutex_;
  std::deque<StepRecord> steps_;
};

}  // namespace quire
