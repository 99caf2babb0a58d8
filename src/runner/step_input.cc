#include "runner/step_input.h"

#include <numeric>

namespace quire {
namespace {

template <class T>
Draw::Range append(std::vector<T>& list, std::span<const T> values) {
  const Draw::Range range{uint32_t(list.size()), uint32_t(values.size())};
  list.insert(list.end(), values.begin(), values.end());
  return range;
}

}  // namespace

void StepInput::add(std::span<const TokenId> run_tokens, uint32_t position, Logits logits) {
  const uint32_t count = uint32_t(run_tokens.size());
  std::vector<uint32_t> run_positions(count);
  std::iota(run_positions.begin(), run_positions.end(), position);
  add(run_tokens, run_positions, position, logits == Logits::all ? count : logits == Logits::last ? 1u : 0u);
}

void StepInput::add(std::span<const TokenId> run_tokens, std::span<const uint32_t> run_positions,
                    uint32_t row, uint32_t logits) {
  const uint32_t begin = uint32_t(tokens.size());
  const uint32_t count = uint32_t(run_tokens.size());
  runs.push_back({begin, count, row});
  for (uint32_t i = 0; i < count; ++i) {
    tokens.push_back(run_tokens[i]);
    positions.push_back(run_positions[i]);
    run_of_token.push_back(uint32_t(runs.size() - 1));
    if (i + logits >= count) logit_rows.push_back(begin + i);
  }
}

void StepInput::add_draw(const SampleParams& how) {
  Draw draw{.how = how};
  draw.seen = append(seen, how.seen);
  draw.logit_bias = append(logit_bias, how.logit_bias);
  draw.watched = append(watched, how.watched);
  draw.allowed = append(allowed, how.allowed);
  draw.how.logits = {};
  draw.how.seen = {};
  draw.how.logit_bias = {};
  draw.how.watched = {};
  draw.how.allowed = {};
  draws.push_back(draw);
}

}  // namespace quire
