#pragma once

#include <optional>
#include <span>
#include <string>

#include "eval/kv_curve.h"
#include "text/tokenizer.h"

namespace quire {

// Chooses, for one prompt after the other, the smallest cache that keeps as many answers as are wanted, by what was measured of the
// model. Immutable; any thread may use it.
class KeepChooser {
 public:
  // The curve must have the format. The tokenizer must outlive it.
  KeepChooser(KvCurve curve, EvaluatorHeads heads, std::string format, const Tokenizer& tokenizer);

  struct Choice {
    std::optional<PruningOptions> pruning;  // nothing: all is kept
    double answers = 1, bytes = 1;  // as measured: of those of the whole cache in the curve's first format
    std::string words;              // what was chosen, and why
  };
  // `target`: the share of the answers.
  Choice choose(std::span<const TokenId> prompt, double target) const;

  // Whether the last tokens of a prompt, which are those that look at the others, have a question.
  bool has_question(std::span<const TokenId> prompt) const;

 private:
  const KvCurve curve_;
  const EvaluatorHeads heads_;
  const std::string format_;
  const Tokenizer& tokenizer_;
};

// The format in which the smallest cache keeps so many answers to a question at the end.
std::string smallest_format(const KvCurve& curve, double target);

// "98%"; throws Error.
double read_target(std::string_view text);

}  // namespace quire
