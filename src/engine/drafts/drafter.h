#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/sequence.h"

namespace quire {

// Guesses what comes next in sequences that have one token to do. What it guesses never changes an answer, only how many
// steps it takes. Engine thread only.
class Drafter {
 public:
  virtual ~Drafter() = default;

  // Whether it wants to learn what the model makes of tokens; and what that was, of the tokens of a sequence from this position
  // on, which are sure.
  virtual bool wants_hidden() const { return false; }
  virtual void learn(const Sequence& /*sequence*/, uint32_t /*position*/, std::span<const float> /*hidden*/) {
  }
  // Between two steps, whether or not anybody wants guesses.
  virtual void catch_up() {}
  // Fills `drafts` of each of the sequences with at most `most[i]` tokens.
  virtual void propose(std::span<Sequence* const> sequences, std::span<const uint32_t> most) = 0;
  // The sequence is gone.
  virtual void forget(SequenceId sequence) = 0;
  // All are, and something may have failed halfway. Allocates nothing.
  virtual void forget_all() = 0;
};

// Looks for the last place where the newest tokens stood before, and guesses that what followed there follows again.
class LookupDrafter : public Drafter {
 public:
  void propose(std::span<Sequence* const> sequences, std::span<const uint32_t> most) override;
  void forget(SequenceId sequence) override { known_.erase(sequence); }
  void forget_all() override { known_.clear(); }

 private:
  static constexpr uint32_t kLongest = 4, kShortest = 2;  // tokens that must agree
  struct Known {
    uint32_t tokens = 0;  // that are in `after`
    std::unordered_map<uint64_t, uint32_t>
        after[kLongest + 1];  // by length: hash -> where the last one ended
  };
  std::map<SequenceId, Known> known_;
};

// How many tokens to guess for a sequence: as many as make the most tokens per second, by what steps with guesses have
// taken and how often they were right. Zero where it does not pay, with a try now and then.
class DraftPace {
 public:
  explicit DraftPace(uint32_t most) : most_(most) {}

  uint32_t length(SequenceId sequence);
  void learn_result(SequenceId sequence, uint32_t drafted, uint32_t accepted);
  // A step of `sequences` streams with `drafts` guesses in all, and the time it took to guess them.
  void learn_step(double step_ms, double guess_ms, uint32_t sequences, uint32_t drafts);
  void forget(SequenceId sequence) { records_.erase(sequence); }
  void forget_all() { records_.clear(); }

 private:
  struct Record {
    double acceptance = 0.7;  // of a guess whose predecessors were right
    uint32_t idle_steps = 0;
  };
  uint32_t most_;
  std::map<SequenceId, Record> records_;
  double plain_ms_ = 0;  // a step without guesses
  double extra_ms_ = 0;  // what each guess adds: to make it, and to check it
};

}  // namespace quire
