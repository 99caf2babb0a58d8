#include "cli/turns.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/json.h"
#include "cli/answer_line.h"

namespace quire::cli {

std::string Turns::describe(const Answer& answer, const std::vector<TokenId>& timeline) const {
  const uint32_t cached = answer.account.cached_tokens;
  std::string text = fmt::format("[turn {}: {} cached + {} new tokens | first token {:.0f} ms", count_ + 1,
                                 cached, answer.prompt_tokens - cached, answer.timings.ttft_ms);
  if (answer.tokens.size() > 1) text += fmt::format(" | {:.1f} tok/s", answer.timings.decode_tok_s);
  text += fmt::format(" | the cache: {}]\n", answer.account.miss.text());
  text += forgotten_line(answer);
  if (last_.empty()) return text;
  const std::vector<TokenId> prompt(timeline.begin(), timeline.begin() + answer.prompt_tokens);
  const size_t at = size_t(std::ranges::mismatch(last_, prompt).in1 - last_.begin());
  // The last token of an answer was drawn but never computed: nothing is lost where that one differs.
  if (at + 1 < last_.size()) text += describe_break(prompt, at);
  return text;
}

void Turns::add(std::vector<TokenId> timeline) {
  last_ = std::move(timeline);
  ++count_;
}

std::string Turns::describe_break(const std::vector<TokenId>& prompt, size_t at) const {
  const auto rest = [&](const std::vector<TokenId>& tokens) {
    return tokenizer_.decode(std::span(tokens).subspan(at), Tokenizer::Special::keep);
  };
  const std::string was = rest(last_), is = rest(prompt);
  const bool same_text = is.starts_with(was);
  return fmt::format(
      "[{} at token {}: {} computed tokens of the turn before cannot be used]\n"
      "[  it was    {}]\n"
      "[  it is now {}]\n",
      same_text ? "the same text is split into other tokens" : "the chat template tells the past otherwise",
      at, last_.size() - 1 - at, excerpt(last_, at), excerpt(prompt, at));
}

std::string Turns::excerpt(const std::vector<TokenId>& tokens, size_t at) const {
  constexpr size_t kBefore = 6, kAfter = 10;
  const size_t begin = at - std::min(at, kBefore), end = std::min(tokens.size(), at + kAfter);
  const auto text = [&](size_t from, size_t to) {
    const std::string part =
        tokenizer_.decode(std::span(tokens).subspan(from, to - from), Tokenizer::Special::keep);
    return OrderedJson(part).dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
  };
  return fmt::format("{}{} then {}{}", begin > 0 ? "... " : "", text(begin, at),
                     at < end ? text(at, end) : "nothing", end < tokens.size() ? " ..." : "");
}

}  // namespace quire::cli
