#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "grammar/grammar.h"
#include "grammar/grammar_source.h"

namespace quire::grammar {

// Throws Error with a sentence if it cannot be understood or followed exactly, within bounded time and memory.
Rules read_source(const GrammarSource& source);

// Compiles grammars over the tokens of one model, and remembers the last ones as far as their memory goes. Any thread.
class GrammarCompiler {
 public:
  // `token_bytes`: by token; empty: it stands for no text.
  explicit GrammarCompiler(std::vector<std::string> token_bytes);

  // Throws NoGrammarRoom if it finds no room beside those that are in use.
  std::shared_ptr<Grammar> compile(const GrammarSource& source);
  GrammarBudget& budget() { return *budget_; }

 private:
  static constexpr size_t kKept = 64;
  static constexpr size_t kMostSourceBytes = size_t(1) << 20;

  void drop_while_over();

  const std::shared_ptr<GrammarBudget> budget_ = std::make_shared<GrammarBudget>();
  std::shared_ptr<const TokenTrie> tokens_;
  std::mutex mutex_;
  std::list<std::pair<GrammarSource, std::shared_ptr<Grammar>>> kept_;  // the newest first
};

}  // namespace quire::grammar
