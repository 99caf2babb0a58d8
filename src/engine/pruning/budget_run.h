#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/pruning/budget_options.h"
#include "engine/pruning/snap_scorer.h"
#include "kv/kv_cache.h"

namespace quire {

// Why the positions of a sequence of this model cannot be counted anew when they have come to the end of its context; empty: they can.
std::string why_positions_end(const ModelSpec& spec, const BackendTraits& backend);

// How one sequence keeps to a budget. Whenever it has as many rows as it may have, `step` of each head go: those that its last tokens
// look at least, by all query heads of a KV head together. The first tokens and the last always stay. When positions would leave the
// context they are counted anew: the rows that are left stand one behind the other from 0 on.
//
// All of it happens at tokens that the budget alone says, and depends on the sequence's own tokens: what its last ones look at is what
// they look at whatever the chunks, and they never come from the cache. Engine thread only.
class BudgetRun {
 public:
  // `context`: positions that there are; all must outlive it. Throws Error if the budget is too small or larger than that.
  BudgetRun(const BudgetOptions& options, const ModelSpec& spec, const KvLayout& layout, uint32_t context,
            bool counts_anew);

  uint32_t rows() const { return rows_; }  // at most
  uint32_t step() const { return step_; }
  // A sequence of so many tokens, as far as it needs room: of those that it has let go, and of those behind a window, it needs none.
  SequenceSize size_of(uint64_t tokens) const {
    return {uint32_t(std::min<uint64_t>(tokens, at_once_)), rows_};
  }
  bool is_full(uint32_t rows) const { return rows == rows_; }
  // The tokens of rows from here on are seen by the scorer, if there is one.
  uint32_t first_seen() const { return rows_ - looking_; }
  TokenScorer* scorer() const { return scorer_.get(); }
  // So many guesses may follow the next token: nothing that is seen may be a guess, nor anything behind the budget.
  uint32_t most_guesses(uint32_t rows) const;
  // What a token's position is less than its place in the sequence.
  uint32_t set_back() const { return set_back_; }
  uint32_t times_counted_anew() const { return times_counted_anew_; }

  // What goes now that it is full, and what is known of the rows afterwards. REQUIRES: all its tokens are computed.
  struct Choice {
    MovedRows moved;
    struct Row {
      uint32_t row = 0, position = 0;
    };
    std::vector<std::vector<Row>> heads;  // by age
    uint32_t end = 0;                     // the position of the next row
    uint32_t set_back = 0, counted_anew = 0;
  };
  Choice choose() const;
  // It was done.
  void take(Choice choice);
  // All rows are gone, and will be computed again.
  void restart();

 private:
  // What a head's last tokens look at.
  class LastLook : public SnapScorer {
   public:
    using SnapScorer::SnapScorer;
    std::span<const float> sums(size_t layer, uint32_t head) const {
      return std::span(values_).subspan(begin_of(layer) + size_t(head) * tokens_, tokens_);
    }
  };
  struct Head {
    uint32_t layer = 0, head = 0;
    bool sees_all = false;
  };
  // Of the rows of a head, by age, whether each goes.
  std::vector<bool> leaving(const Head& head, std::span<const Choice::Row> rows) const;

  const BudgetOptions options_;
  const uint32_t context_;
  const bool counts_anew_;
  uint32_t rows_ = 0, step_ = 0;
  uint32_t at_once_ = 0;              // tokens that some layer has rows of, at most
  uint32_t looking_ = 0;              // of the last tokens: those that say what stays
  std::unique_ptr<LastLook> scorer_;  // null: nobody is asked
  std::vector<Head> places_;          // of all heads that have rows
  std::vector<std::vector<Choice::Row>> heads_;
  uint32_t end_ = 0;  // the position of the first row that is in none of them
  uint32_t set_back_ = 0, times_counted_anew_ = 0;
};

}  // namespace quire
