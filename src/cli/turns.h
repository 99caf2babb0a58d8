#pragma once

#include <string>
#include <vector>

#include "engine/request.h"
#include "text/tokenizer.h"

namespace quire::cli {

// The turns of a conversation as the cache sees them: each repeats the one before it and adds something, unless the chat
// template tells the past otherwise than it was.
class Turns {
 public:
  explicit Turns(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  // The figures of an answer, and where its prompt left the turn before. `timeline`: its prompt and its tokens.
  std::string describe(const Answer& answer, const std::vector<TokenId>& timeline) const;
  void add(std::vector<TokenId> timeline);
  void start_again() { last_.clear(); }

 private:
  std::string describe_break(const std::vector<TokenId>& prompt, size_t at) const;
  std::string excerpt(const std::vector<TokenId>& tokens, size_t at) const;

  const Tokenizer& tokenizer_;
  std::vector<TokenId> last_;  // prompt and answer of the turn before; empty: there was none
  uint32_t count_ = 0;
};

}  // namespace quire::cli
