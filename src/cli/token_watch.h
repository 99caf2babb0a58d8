#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "engine/request.h"
#include "text/tokenizer.h"

namespace quire::cli {

// What `run` is asked to show of each token beside its text. Watching changes no token.
struct WatchOptions {
  uint32_t top = 0;                     // so many of the likeliest
  std::vector<std::string> candidates;  // texts whose places are wanted
  bool drafts = false;

  bool steps() const { return top > 0 || !candidates.empty(); }
  bool any() const { return steps() || drafts; }
};

// The tokens that the candidates are, with and without a space before them; one that is no token either way is wrong
// usage, and the message shows how it is split.
std::vector<TokenId> candidate_tokens(const Tokenizer& tokenizer, const std::vector<std::string>& candidates);

// Writes down tokens as they come.
class TokenWatch {
 public:
  enum class Marks : uint8_t { brackets, colours };
  TokenWatch(const WatchOptions& options, const Tokenizer& tokenizer, Marks marks)
      : options_(options), tokenizer_(tokenizer), marks_(marks) {}

  // One line: the token that was drawn, its rivals, the places of the candidates.
  std::string line(const TokenEvent& event);
  // The text, with what a drafter had guessed marked: rightly [so], in vain {so}.
  std::string text(const TokenEvent& event) const;
  OrderedJson json(const TokenEvent& event) const;

 private:
  std::string quoted(TokenId token) const;
  std::string right(const std::string& text) const;
  std::string wrong(const std::string& text) const;
  std::string wrong_guesses(const TokenEvent& event) const;

  const WatchOptions& options_;
  const Tokenizer& tokenizer_;
  Marks marks_;
  uint32_t step_ = 0;
};

// A token's text in quotes, its line breaks and the like escaped.
std::string quoted_token(const Tokenizer& tokenizer, TokenId token);

}  // namespace quire::cli
