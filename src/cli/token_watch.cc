#include "cli/token_watch.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "cli/model_options.h"

namespace quire::cli {
namespace {

std::string percent(float logprob) {
  const double share = std::exp(double(logprob)) * 100;
  return fmt::format("{:.{}f} %", share, share < 0.1 ? 3 : 1);
}

std::string text_of(const Tokenizer& tokenizer, TokenId token) {
  return tokenizer.decode({&token, 1}, Tokenizer::Special::keep);
}

std::string in_quotes(const std::string& text) {
  return OrderedJson(text).dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

std::string split_text(const Tokenizer& tokenizer, const std::vector<TokenId>& tokens) {
  constexpr size_t kMost = 12;
  std::string text;
  for (size_t i = 0; i < std::min(tokens.size(), kMost); ++i)
    text += (i > 0 ? " " : "") + quoted_token(tokenizer, tokens[i]);
  return tokens.size() > kMost ? text + " ..." : text;
}

}  // namespace

std::string quoted_token(const Tokenizer& tokenizer, TokenId token) {
  return in_quotes(text_of(tokenizer, token));
}

std::vector<TokenId> candidate_tokens(const Tokenizer& tokenizer,
                                      const std::vector<std::string>& candidates) {
  std::vector<TokenId> tokens;
  for (const std::string& candidate : candidates) {
    if (candidate.empty()) wrong_usage("--candidates wants texts separated by commas, and one is empty");
    const std::vector<TokenId> plain = tokenizer.encode(candidate, {.add_special = false});
    const std::vector<TokenId> after_space = tokenizer.encode(" " + candidate, {.add_special = false});
    bool found = false;
    for (const std::vector<TokenId>* form : {&plain, &after_space}) {
      if (form->size() != 1) continue;
      found = true;
      if (std::find(tokens.begin(), tokens.end(), form->front()) == tokens.end())
        tokens.push_back(form->front());
    }
    if (!found) {
      wrong_usage("--candidates: {} is not one token, but {}: {}; nor after a space: {}",
                  in_quotes(candidate), plain.size(), split_text(tokenizer, plain),
                  split_text(tokenizer, after_space));
    }
  }
  return tokens;
}

std::string TokenWatch::quoted(TokenId token) const {
  return quoted_token(tokenizer_, token);
}

std::string TokenWatch::right(const std::string& text) const {
  return marks_ == Marks::colours ? "\033[4m" + text + "\033[24m" : "[" + text + "]";
}

std::string TokenWatch::wrong(const std::string& text) const {
  return marks_ == Marks::colours ? "\033[2;9m" + text + "\033[22;29m" : "{" + text + "}";
}

std::string TokenWatch::wrong_guesses(const TokenEvent& event) const {
  return event.wrong_guesses.empty()
             ? ""
             : wrong(tokenizer_.decode(event.wrong_guesses, Tokenizer::Special::keep));
}

std::string TokenWatch::line(const TokenEvent& event) {
  std::string drawn = quoted(event.token);
  if (options_.drafts && event.guessed) drawn = right(drawn);
  std::string line = fmt::format("{:4}  {:16} {:>8}", ++step_, drawn, percent(event.logprob));
  const char* between = "  | ";
  for (const TokenLogprob& rival : event.top_logprobs) {
    if (rival.token == event.token) continue;
    line += fmt::format("{}{} {}", between, quoted(rival.token), percent(rival.logprob));
    between = ", ";
  }
  between = "  | ";
  for (const TokenRank& watched : event.watched) {
    line += fmt::format("{}{} is no. {}, {}", between, quoted(watched.token), watched.rank,
                        percent(watched.logprob));
    between = ", ";
  }
  if (options_.drafts && !event.wrong_guesses.empty()) {
    line += "  | guessed ";
    std::string guesses;
    for (const TokenId token : event.wrong_guesses) guesses += (guesses.empty() ? "" : " ") + quoted(token);
    line += wrong(guesses);
  }
  return line + "\n";
}

std::string TokenWatch::text(const TokenEvent& event) const {
  if (!options_.drafts) return event.text;
  // The last event may bring text that earlier tokens held back: it is marked with it.
  const std::string drawn = event.guessed && !event.text.empty() ? right(event.text) : event.text;
  return event.guessed ? drawn + wrong_guesses(event) : wrong_guesses(event) + drawn;
}

OrderedJson TokenWatch::json(const TokenEvent& event) const {
  const auto entry = [&](TokenId token, float logprob) {
    return OrderedJson{{"token", token},
                       {"text", text_of(tokenizer_, token)},
                       {"logprob", logprob},
                       {"probability", std::exp(double(logprob))}};
  };
  OrderedJson step = options_.steps()
                         ? entry(event.token, event.logprob)
                         : OrderedJson{{"token", event.token}, {"text", text_of(tokenizer_, event.token)}};
  if (options_.top > 0) {
    step["top"] = OrderedJson::array();
    for (const TokenLogprob& rival : event.top_logprobs)
      step["top"].push_back(entry(rival.token, rival.logprob));
  }
  if (!options_.candidates.empty()) {
    step["candidates"] = OrderedJson::array();
    for (const TokenRank& watched : event.watched) {
      step["candidates"].push_back(entry(watched.token, watched.logprob));
      step["candidates"].back()["rank"] = watched.rank;
    }
  }
  if (options_.drafts) {
    step["guessed"] = event.guessed;
    step["wrong_guesses"] = OrderedJson::array();
    for (const TokenId token : event.wrong_guesses)
      step["wrong_guesses"].push_back({{"token", token}, {"text", text_of(tokenizer_, token)}});
  }
  return step;
}

}  // namespace quire::cli
