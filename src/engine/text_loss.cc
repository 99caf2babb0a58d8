#include "engine/text_loss.h"

#include <algorithm>

#include "backend/sample.h"
#include "base/check.h"
#include "engine/text_runner.h"

namespace quire {

std::vector<TokenId> tokens_in_parts(const Tokenizer& tokenizer, std::string_view text,
                                     uint32_t part_tokens) {
  const std::vector<TokenId> plain = tokenizer.encode(text, {.add_special = false});
  const std::vector<TokenId> empty = tokenizer.encode("", {});
  const bool adds_bos = tokenizer.bos() && !empty.empty() && empty.front() == *tokenizer.bos();
  if (!adds_bos) return plain;
  std::vector<TokenId> tokens;
  for (TokenId token : plain) {
    if (tokens.size() % part_tokens == 0) tokens.push_back(*tokenizer.bos());
    tokens.push_back(token);
  }
  return tokens;
}

void for_each_logits(const EngineModel& model, std::span<const TokenId> tokens, const LossOptions& options,
                     const std::function<void(size_t position, std::span<const float> logits)>& take) {
  CHECK(options.part_tokens >= 2 && options.prefill_chunk >= 1);
  const uint32_t chunk = std::min(options.prefill_chunk, options.part_tokens);
  TextRunner runner(model, options.kv_formats, options.part_tokens, chunk);
  for (size_t begin = 0; begin < tokens.size(); begin += options.part_tokens) {
    const auto part = tokens.subspan(begin, std::min<size_t>(options.part_tokens, tokens.size() - begin));
    runner.restart();
    while (runner.done() + 1 < part.size()) {  // the last token predicts nothing inside the part
      const uint32_t done = runner.done(),
                     count = std::min<uint32_t>(chunk, uint32_t(part.size()) - 1 - done);
      const StepOutput output = runner.compute(part.subspan(done, count));
      for (uint32_t i = 0; i < count; ++i) take(begin + done + i, output.logits_of(i));
    }
  }
}

std::vector<double> losses(const EngineModel& model, std::span<const TokenId> tokens,
                           const LossOptions& options, const std::function<void(size_t)>& progress) {
  std::vector<double> all;
  for_each_logits(model, tokens, options, [&](size_t position, std::span<const float> logits) {
    all.push_back(negative_log_likelihood(logits, tokens[position + 1]));
    if (progress) progress(position + 1);
  });
  return all;
}

}  // namespace quire
