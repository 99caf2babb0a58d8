#include "engine/pruning/pruning_options.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/error.h"

namespace quire {

std::string_view name(PruningPolicy policy) {
  switch (policy) {
    case PruningPolicy::streaming:
      return "streaming";
    case PruningPolicy::snap:
      return "snap";
    case PruningPolicy::zip:
      return "zip";
    case PruningPolicy::expected:
      return "expected";
    case PruningPolicy::evaluator_prompt:
      return "evaluator-prompt";
    case PruningPolicy::evaluator:
      break;
  }
  return "evaluator";
}

bool asks_evaluator(PruningPolicy policy) {
  return policy == PruningPolicy::evaluator || policy == PruningPolicy::evaluator_prompt;
}

uint32_t usual_window(PruningPolicy policy) {
  return policy == PruningPolicy::zip ? 4 : PruningOptions{}.window;
}

PruningPolicy pruning_policy_from_name(std::string_view text) {
  std::string known;
  for (const PruningPolicy policy : kPruningPolicies) {
    if (name(policy) == text) return policy;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", name(policy));
  }
  throw Error("there is no pruning policy \"{}\"; there are {}", text, known);
}

uint32_t PruningOptions::kept_of(uint32_t prompt) const {
  const uint32_t wanted = tokens > 0 ? tokens : uint32_t(std::ceil(share * double(prompt)));
  const uint64_t least = std::max(wanted, window + 1);
  return uint32_t(std::min<uint64_t>(prompt, (least + multiple - 1) / multiple * multiple));
}

void PruningOptions::check() const {
  if ((tokens > 0) == (share > 0)) throw Error("what is kept of a prompt is a share or a number of tokens");
  if (!(share >= 0 && share <= 1))
    throw Error("the share of a prompt that is kept must be above 0 and up to 100 %");
  if (window == 0 || window > 4096) throw Error("1 to 4096 last tokens can be kept for sure, not {}", window);
}

void PruningOptions::check_heads() const {
  if (asks_evaluator(policy) && evaluator.heads.empty())
    throw Error("the model's evaluator heads are not known: quire kv-heads finds them");
}

void read_kept(std::string_view text, PruningOptions& options) {
  const bool percent = text.ends_with('%');
  const std::string_view digits = percent ? text.substr(0, text.size() - 1) : text;
  double value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  const bool whole = percent || value == std::floor(value);
  if (error != std::errc() || end != digits.data() + digits.size() || !whole || !(value > 0) ||
      value > (percent ? 100.0 : 4e9)) {
    throw Error("\"{}\" is no share like 50% and no number of tokens like 2000", text);
  }
  options.share = percent ? value / 100 : 0;
  options.tokens = percent ? 0 : uint32_t(value);
}

}  // namespace quire
