#pragma once

#include <map>
#include <vector>

#include "engine/drafts/drafter.h"
#include "engine/engine.h"
#include "model/predictor.h"

namespace quire {

// The layer of a model that predicts further tokens guesses them: row p of its cache is made of what the model made of token p
// and of token p + 1, and tells token p + 2; after that it goes on from its own results. It draws with the same keys as the model
// will. What rows of guesses it has left are written again once the model has told what is true.
class MtpDrafter : public Drafter {
 public:
  // `predictor`: of the engine's model; it and what `model` points to must outlive this. `options`: of the engine.
  MtpDrafter(const Predictor& predictor, const EngineModel& model, const EngineOptions& options);

  bool wants_hidden() const override { return true; }
  void learn(const Sequence& sequence, uint32_t position, std::span<const float> hidden) override;
  void catch_up() override;
  void propose(std::span<Sequence* const> sequences, std::span<const uint32_t> most) override;
  void forget(SequenceId sequence) override;
  void forget_all() override;

 private:
  // Tokens, each with what the model made of the one before.
  struct Pairs {
    std::vector<TokenId> tokens = {};
    std::vector<float> hidden = {};  // [tokens, dim]
  };
  struct State {
    PageTable table;
    uint32_t first =
        0;  // the position of its first row: later where the model found a prefix and this did not
    std::vector<TokenId> fed = {};  // of the rows that are in pages and will stay
    Pairs due = {};                 // of those that follow
    Pairs last = {};                // of the last row, which is computed again if its draw is wanted again
    uint32_t next() const { return first + uint32_t(fed.size() + due.tokens.size()); }  // position
  };
  PageTable make_table(const Sequence& sequence) const;
  // Gives up its rows and begins with that of this position, whose pages are for nobody else.
  void start_at(State& state, SequenceId id, uint32_t position);
  State& state_of(const Sequence& sequence);
  // Whether there is a row whose draw is the sequence's next token.
  bool is_ready(State& state, const Sequence& sequence) const;
  // Adds the rows of `pairs` from this one on to the step. False: there is no room.
  bool add(State& state, uint32_t row, const Pairs& pairs, StepInput::Logits logits, StepInput& input);
  // The first of the pairs that are due, which become sure.
  Pairs take_due(State& state, size_t count) const;
  StepOutput run(StepInput input, std::span<const PageTable* const> tables);

  size_t dim_;
  uint32_t context_, chunk_;
  KvCache kv_;
  Runner runner_;
  std::map<SequenceId, State> states_;
};

}  // namespace quire
