#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "grammar/rules.h"

namespace quire::grammar {

// An Earley parser over bytes whose columns are values. A column is all that can be said of the text so far: which rules are under
// way, how far, and from which column on. Equal columns are one, and a column's followers are remembered: so they are the states of
// an automaton that is made as texts are read, a place in a text is a number, and to go back is to have kept another number. What
// stands at the end of a rule takes the rule's place (as a tail call does), so that lists to the right need no more than lists to
// the left. One thread at a time.
class Columns {
 public:
  using Id = uint32_t;
  static constexpr Id kDead = 0;  // no text that begins so is allowed
  static constexpr size_t kMostBytes = size_t(64) << 20;
  static constexpr size_t kMostWork = 3'000'000;  // rules under way that are looked at for one question

  explicit Columns(Rules rules);

  Id start();
  // Throws Error if the grammar takes too much memory.
  Id next(Id column, uint8_t byte) {
    const Id* row = rows_[column].get();
    if (row != nullptr && row[byte] != kUnknown) return row[byte];
    return compute(column, byte);
  }
  bool may_end(Id column) const { return columns_[column].accepts; }
  bool can_continue(Id column) const { return !columns_[column].lexing.empty(); }

  // How many characters that may stand in a JSON string as they are may follow in any order, at the most; nothing where that cannot be
  // seen at once.
  std::optional<uint32_t> plain_run(Id column) const { return columns_[column].plain_run; }
  static constexpr uint32_t kEndless = ExprPool::kNoMost;
  bool is_endless(Id column) const { return endless_[column] != 0; }
  // By byte what is known to follow a column, or kUnknown; null: nothing is known. It holds until more is asked of the column.
  const Id* known_next(Id column) const { return rows_[column].get(); }
  static constexpr Id kUnknown = ~Id(0);

  // A question begins: what it may cost is bounded.
  void begin_question() { work_ = 0; }
  // What it remembers. Forgetting makes all columns void.
  size_t used_bytes() const { return used_bytes_; }
  size_t all_bytes() const { return used_bytes_ + rules_.used_bytes(); }  // with the rules
  void forget();

 private:
  static constexpr Id kSelf = ~Id(0) - 1;            // as an origin: the column that has it
  static constexpr uint32_t kAccept = ~uint32_t(0);  // as a place: the text is complete

  // A rule under way: where in it, what it is part of, since when; and of a terminal how far.
  struct Item {
    uint32_t place = 0;
    uint32_t goal = 0;  // the rule that ends where this alternative does
    Id origin = 0;
    ExprId text = ExprPool::kNothing;
    auto operator<=>(const Item&) const = default;
  };
  struct Column {
    std::vector<Item> lexing;   // terminals under way
    std::vector<Item> waiting;  // for rules, by rule
    bool accepts = false;
    std::optional<uint32_t> plain_run;
  };
  struct KernelHash {
    size_t operator()(const std::vector<Item>& items) const;
  };

  Id compute(Id column, uint8_t byte);
  Id intern(std::vector<Item> kernel);
  void close(std::span<const Item> kernel, Id self);
  // Goes past the symbol that stands at `place`: adds to `out`, or ends what ends with it.
  void advance(Item item, std::vector<Item>& out);
  void predict(const Item& item, Id self, std::vector<Item>& work);
  void charge(size_t bytes);
  void count_work();

  Rules rules_;
  std::vector<Column> columns_;
  std::vector<std::unique_ptr<Id[]>> rows_;  // what follows, by byte; null until it is asked for
  std::vector<uint8_t> endless_;             // by column: whether its plain run is
  std::unordered_map<std::vector<Item>, Id, KernelHash> by_kernel_;
  Id start_ = kDead;
  size_t used_bytes_ = 0;
  size_t work_ = 0;  // of the question at hand
};

}  // namespace quire::grammar
