#include "engine/scorer.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "engine/text_runner.h"

namespace quire {
namespace {

double negative_log_likelihood(std::span<const float> logits, TokenId token) {
  const float max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (float logit : logits) sum += std::exp(double(logit) - double(max));
  return std::log(sum) + double(max) - double(logits[token]);
}

}  // namespace

void for_each_logits(const EngineModel& model, std::span<const TokenId> tokens, const ScoreOptions& options,
                     const std::function<void(size_t position, std::span<const float> logits)>& take) {
  CHECK(options.window >= 2 && options.prefill_chunk >= 1);
  const uint32_t chunk = std::min(options.prefill_chunk, options.window);
  TextRunner runner(model, options.kv_formats, options.window, chunk);
  for (size_t begin = 0; begin < tokens.size(); begin += options.window) {
    const auto window = tokens.subspan(begin, std::min<size_t>(options.window, tokens.size() - begin));
    runner.restart();
    while (runner.done() + 1 < window.size()) {  // the last token predicts nothing inside the window
      const uint32_t done = runner.done(),
                     count = std::min<uint32_t>(chunk, uint32_t(window.size()) - 1 - done);
      const StepOutput output = runner.compute(window.subspan(done, count));
      for (uint32_t i = 0; i < count; ++i) take(begin + done + i, output.logits_of(i));
    }
  }
}

std::vector<double> score(const EngineModel& model, std::span<const TokenId> tokens,
                          const ScoreOptions& options, const std::function<void(size_t)>& progress) {
  std::vector<double> scores;
  for_each_logits(model, tokens, options, [&](size_t position, std::span<const float> logits) {
    scores.push_back(negative_log_likelihood(logits, tokens[position + 1]));
    if (progress) progress(position + 1);
  });
  return scores;
}

}  // namespace quire
