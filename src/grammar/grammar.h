#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "grammar/columns.h"
#include "grammar/grammar_budget.h"
#include "grammar/grammar_source.h"
#include "grammar/token_trie.h"

namespace quire::grammar {

// A compiled grammar over a model's tokens, which every answer that keeps to it shares, and what was found out about it so far.
// What it says depends on nothing but the grammar, the tokens and the text. Any thread may use it.
class Grammar {
 public:
  Grammar(Rules rules, std::shared_ptr<const TokenTrie> tokens, GrammarSource source,
          std::shared_ptr<GrammarBudget> budget = nullptr);
  ~Grammar();

  const GrammarSource& source() const { return source_; }

  // A place in texts of the grammar. It holds until the grammar forgets.
  struct Place {
    Columns::Id column = Columns::kDead;
    uint64_t epoch = 0;
  };

  // The place after these tokens; of tokens that are not allowed it is dead. `known`: the place after all but the last `more`.
  Place after(std::span<const TokenId> tokens, Place known, size_t more);
  std::shared_ptr<const TokenMask> mask(std::span<const TokenId> tokens, Place& place);
  bool may_end(std::span<const TokenId> tokens, Place& place);
  bool can_continue(std::span<const TokenId> tokens, Place& place);
  // The bytes that must follow, as far as there is no choice; at most `most`.
  std::string forced(std::span<const TokenId> tokens, Place& place, size_t most);

  const TokenTrie& tokens() const { return *tokens_; }
  // Whether `text` belongs to it.
  bool accepts(std::string_view text);

  // For the budget: when it was asked last; forgets what can be found out again, unless somebody is asking, and says what is left.
  uint64_t last_asked() const { return asked_.load(std::memory_order_relaxed); }
  std::optional<size_t> try_forget();

 private:
  static constexpr size_t kMostMasks = 256;
  static constexpr size_t kKeptBytes = size_t(40) << 20;  // of columns, between two questions

  // A question to the grammar: nobody else asks while it is there, and what it found out is counted when it goes.
  class Question;
  void forget();
  size_t used_bytes() const;
  void tidy();
  void refresh(std::span<const TokenId> tokens, Place& place);
  Columns::Id walk(Columns::Id column, std::string_view bytes);

  std::mutex mutex_;
  const GrammarSource source_;
  std::shared_ptr<const TokenTrie> tokens_;
  Columns columns_;
  uint64_t epoch_ = 1;
  std::unordered_map<Columns::Id, std::shared_ptr<const TokenMask>> masks_;
  const std::shared_ptr<GrammarBudget> budget_;
  std::atomic<uint64_t> asked_ = 0;
  size_t told_ = 0;  // what the budget knows
};

// The tokens of one answer so far, and what may follow them. It never changes what it says of the same tokens, whatever was
// asked before. One thread at a time.
class Constraint {
 public:
  explicit Constraint(std::shared_ptr<Grammar> grammar);

  // Goes on by a token. False: it is not allowed, and nothing has changed.
  bool advance(TokenId token);
  // Takes the last tokens back.
  void rollback(size_t tokens);

  // The tokens that may come next, without those that end an answer. Throws Error if that takes too much memory.
  std::shared_ptr<const TokenMask> mask();
  // Whether the text may end here; whether nothing else is left to it.
  bool may_end();
  bool must_end();
  // Tokens that spell what must follow, at most so many. Others may spell the same.
  std::vector<TokenId> forced(size_t most);

  const std::vector<TokenId>& tokens() const { return tokens_; }
  Grammar& grammar() { return *grammar_; }

 private:
  std::shared_ptr<Grammar> grammar_;
  std::vector<TokenId> tokens_;
  std::vector<Grammar::Place> places_;  // after each of them, the first before all
};

}  // namespace quire::grammar
