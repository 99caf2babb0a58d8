#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

#include "base/error.h"

namespace quire::grammar {

class Grammar;

// What all grammars of a model take, and what became of them.
struct GrammarFigures {
  size_t bytes = 0, most_bytes = 0;
  uint32_t grammars = 0;                 // that are in memory
  uint64_t compiled = 0, forgotten = 0;  // so far: made; made to forget what they had found out
  uint64_t refused = 0;                  // for want of memory
};

// Thrown where a grammar finds no room beside those that answers are keeping to.
class NoGrammarRoom : public Error {
 public:
  using Error::Error;
};

// The memory that all grammars of a model share: expressions, columns and masks. When it is used up, those that were not asked for
// longest forget what can be found out again. Outlives its grammars. Any thread.
class GrammarBudget {
 public:
  static constexpr size_t kUsualBytes = size_t(128) << 20;

  explicit GrammarBudget(size_t most_bytes = kUsualBytes) : most_(most_bytes) {}

  void set_most(size_t bytes) { most_.store(bytes, std::memory_order_relaxed); }
  bool is_over() const {
    return bytes_.load(std::memory_order_relaxed) > most_.load(std::memory_order_relaxed);
  }
  GrammarFigures figures() const;
  void count_refused() { refused_.fetch_add(1, std::memory_order_relaxed); }

  // Of grammars. `asker` takes so many bytes now; true: others could not make enough room, and it should.
  void join(Grammar& one);
  void leave(Grammar& one);
  bool told(Grammar& asker, size_t bytes);
  uint64_t tick() { return clock_.fetch_add(1, std::memory_order_relaxed); }
  void count_forgotten() { forgotten_.fetch_add(1, std::memory_order_relaxed); }

 private:
  mutable std::mutex mutex_;
  std::map<Grammar*, size_t> known_;  // what they take
  std::atomic<size_t> bytes_ = 0, most_;
  std::atomic<uint64_t> clock_ = 1, compiled_ = 0, forgotten_ = 0, refused_ = 0;
};

}  // namespace quire::grammar
