#include "eval/kv_meter.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "base/check.h"
#include "base/clock.h"
#include "engine/text_runner.h"

namespace quire {
namespace {

constexpr uint32_t kChunk = 64, kSpans = 8;

// Log-probabilities, and which is the largest.
struct Distribution {
  std::vector<double> log_p;
  size_t top = 0;

  explicit Distribution(std::span<const float> logits) : log_p(logits.size()) {
    top = size_t(std::max_element(logits.begin(), logits.end()) - logits.begin());
    double sum = 0;
    for (const float logit : logits) sum += std::exp(double(logit) - double(logits[top]));
    const double all = std::log(sum) + double(logits[top]);
    for (size_t i = 0; i < logits.size(); ++i) log_p[i] = double(logits[i]) - all;
  }
};

double divergence(const Distribution& from, const Distribution& to) {
  double sum = 0;
  for (size_t i = 0; i < from.log_p.size(); ++i)
    sum += std::exp(from.log_p[i]) * (from.log_p[i] - to.log_p[i]);
  return std::max(sum, 0.0);
}

double time_steps(TextRunner& runner, std::span<const TokenId> next) {
  std::vector<double> ms;
  for (const TokenId& token : next) {
    const Clock::time_point begin = Clock::now();
    runner.compute(std::span(&token, 1), TextRunner::Wanted::last_row);
    ms.push_back(milliseconds_between(begin, Clock::now()));
  }
  return *std::min_element(ms.begin(), ms.end());
}

}  // namespace

double KvMeterResult::Span::perplexity_base() const {
  return std::exp(nll_base / double(std::max<size_t>(tokens, 1)));
}

double KvMeterResult::Span::perplexity() const {
  return std::exp(nll / double(std::max<size_t>(tokens, 1)));
}

KvMeterResult::Verdict KvMeterResult::verdict() const {
  const double flipped = std::max(0.0, noise_agreement - agreement);
  if (!std::isfinite(all.nll) || loss() > 0.05 || flipped > 0.12) return Verdict::broken;
  if (loss() > 0.01 || flipped > 0.04) return Verdict::noticeable;
  return loss() > 0.003 || flipped > 0.01 ? Verdict::small : Verdict::same;
}

std::string KvMeterResult::sentence() const {
  const std::string figures =
      fmt::format("perplexity {:+.2f} %, the same likeliest token at {:.1f} % of the places", 100 * loss(),
                  100 * agreement);
  const double share = 100.0 * double(bytes_per_token) / double(base_bytes_per_token);
  switch (verdict()) {
    case Verdict::same:
      return fmt::format("As good as 16 bit on this text ({}), at {:.0f} % of the bytes.", figures, share);
    case Verdict::small:
      return fmt::format("A small loss on this text ({}), at {:.0f} % of the bytes.", figures, share);
    case Verdict::noticeable:
      return fmt::format("A loss that can be noticed on this text ({}); it saves {:.0f} % of the bytes.",
                         figures, 100 - share);
    case Verdict::broken:
      break;
  }
  return fmt::format("Broken for this model: {}. Use a larger format, at least for the keys.", figures);
}

KvMeterResult measure_kv(const EngineModel& model, std::span<const TokenId> tokens,
                         const KvMeterOptions& options, const std::function<void(size_t)>& progress) {
  CHECK(options.window >= 2);
  const uint32_t window = uint32_t(std::min<size_t>(options.window, tokens.size()));
  const uint32_t room = window + options.speed_steps;
  TextRunner base(model, KvFormat::f16, room, kChunk);
  TextRunner noisy(model, KvFormat::f32, room, kChunk);
  TextRunner other(model, options.kv_formats, room, kChunk);
  KvMeterResult result;
  result.base_bytes_per_token = base.layout().bytes_per_token();
  result.bytes_per_token = other.layout().bytes_per_token();
  const uint32_t span_tokens = std::max(1u, (window + kSpans - 1) / kSpans);
  for (uint32_t begin = 0; begin + 1 < window; begin += span_tokens)
    result.spans.push_back({.begin = begin, .end = std::min(window, begin + span_tokens)});

  std::vector<double> divergences;
  for (size_t begin = 0; begin + 1 < tokens.size(); begin += window) {
    const auto text = tokens.subspan(begin, std::min<size_t>(window, tokens.size() - begin));
    base.restart();
    noisy.restart();
    other.restart();
    while (base.done() + 1 < text.size()) {
      const uint32_t done = base.done(), count = std::min(kChunk, uint32_t(text.size()) - 1 - done);
      const auto next_tokens = text.subspan(done, count);
      const StepOutput base_rows = base.compute(next_tokens), noisy_rows = noisy.compute(next_tokens),
                       rows = other.compute(next_tokens);
      for (uint32_t i = 0; i < count; ++i) {
        const Distribution from(base_rows.logits_of(i)), to(rows.logits_of(i));
        const Distribution noise(noisy_rows.logits_of(i));
        const TokenId next = text[done + i + 1];
        divergences.push_back(divergence(from, to));
        const double noise_divergence = divergence(from, noise);
        for (KvMeterResult::Span* span : {&result.all, &result.spans[(done + i) / span_tokens]}) {
          ++span->tokens;
          span->nll_base -= from.log_p[next];
          span->nll -= to.log_p[next];
          span->divergence += divergences.back();
          span->noise += noise_divergence;
          span->agreed += from.top == to.top ? 1 : 0;
          span->noise_agreed += from.top == noise.top ? 1 : 0;
        }
      }
      if (progress) progress(begin + base.done());
    }
    if (begin == 0 && options.speed_steps > 0) {
      const std::vector<TokenId> steps(options.speed_steps, text.back());
      result.base_step_ms = time_steps(base, steps);
      result.step_ms = time_steps(other, steps);
    }
  }
  result.tokens = result.all.tokens;
  if (divergences.empty()) return result;
  result.divergence_mean = result.all.divergence / double(divergences.size());
  result.agreement = double(result.all.agreed) / double(divergences.size());
  result.noise_divergence = result.all.noise / double(divergences.size());
  result.noise_agreement = double(result.all.noise_agreed) / double(divergences.size());
  const auto p99 = divergences.begin() + ptrdiff_t(double(divergences.size() - 1) * 0.99);
  std::nth_element(divergences.begin(), p99, divergences.end());
  result.divergence_p99 = *p99;
  return result;
}

}  // namespace quire
