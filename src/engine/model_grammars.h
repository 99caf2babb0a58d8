#pragma once

#include <memory>
#include <mutex>

#include "grammar/grammar_compiler.h"
#include "text/tokenizer.h"

namespace quire {

// The compiler of grammars over a model's tokens, made when it is first needed: not every model is asked for one. Any thread.
class ModelGrammars {
 public:
  // Throws Error if the grammar cannot be followed. The tokenizer must be the same each time.
  std::shared_ptr<grammar::Grammar> compile(const Tokenizer& tokenizer, const grammar::GrammarSource& source);
  // The memory of all grammars together.
  void limit(size_t bytes);
  grammar::GrammarFigures figures() const;

 private:
  mutable std::mutex mutex_;
  size_t most_bytes_ = grammar::GrammarBudget::kUsualBytes;
  std::unique_ptr<grammar::GrammarCompiler> compiler_;
};

}  // namespace quire
