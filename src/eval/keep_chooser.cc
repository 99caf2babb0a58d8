#include "eval/keep_chooser.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/error.h"

namespace quire {
namespace {

constexpr size_t kWorthIt = 256;  // tokens: of fewer there is too little to gain

std::string percent(double share) {
  return fmt::format("{:.0f} %", 100 * share);
}

}  // namespace

KeepChooser::KeepChooser(KvCurve curve, EvaluatorHeads heads, std::string format, const Tokenizer& tokenizer)
    : curve_(std::move(curve)), heads_(std::move(heads)), format_(std::move(format)), tokenizer_(tokenizer) {}

bool KeepChooser::has_question(std::span<const TokenId> prompt) const {
  const auto end = prompt.last(std::min<size_t>(prompt.size(), PruningOptions{}.window));
  return tokenizer_.decode(end, Tokenizer::Special::skip).find('?') != std::string::npos;
}

KeepChooser::Choice KeepChooser::choose(std::span<const TokenId> prompt, double target) const {
  const auto whole = std::ranges::find_if(
      curve_.points, [&](const KvCurve::Point& point) { return !point.policy && point.format == format_; });
  Choice choice;
  if (whole != curve_.points.end()) {
    choice.answers = curve_.answers(*whole);
    choice.bytes = curve_.bytes(*whole);
  }
  if (prompt.size() < kWorthIt) {
    choice.words =
        fmt::format("all is kept: a prompt of fewer than {} tokens is not worth pruning", kWorthIt);
    return choice;
  }
  const bool asks = has_question(prompt);
  const KvCurve::Point* point = curve_.smallest(target, asks, format_);
  if (point == nullptr || !point->policy) {
    choice.words =
        fmt::format("all is kept: {}nothing smaller in {} was measured to keep {} of the answers",
                    asks ? "" : "the prompt has no question at its end, and ", format_, percent(target));
    return choice;
  }
  choice.answers = curve_.answers(*point);
  choice.bytes = curve_.bytes(*point);
  choice.pruning = PruningOptions{.policy = *point->policy,
                                  .share = point->share,
                                  .window = usual_window(*point->policy),
                                  .evaluator = heads_,
                                  .measured = choice.answers};
  choice.words = fmt::format(
      "{} keeps {} of the tokens{}: {} of {}'s bytes, {} of the answers that were measured",
      name(*point->policy), percent(point->share), asks ? "" : ", as no question is at the prompt's end",
      percent(choice.bytes), curve_.points.front().format, percent(choice.answers));
  return choice;
}

std::string smallest_format(const KvCurve& curve, double target) {
  const KvCurve::Point* point = curve.smallest(target, true);
  return point != nullptr ? point->format : curve.points.front().format;
}

double read_target(std::string_view text) {
  PruningOptions read;
  read_kept(text, read);
  if (read.share == 0) throw Error("\"{}\" is no share of the answers like 98%", text);
  return read.share;
}

}  // namespace quire
