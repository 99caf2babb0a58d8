#pragma once

#include <map>
#include <vector>

#include "engine/drafts/drafter.h"
#include "engine/engine.h"

namespace quire {

// A small model with the same tokens guesses what the large one will say. It draws with the same keys as the large one
// will, so that it is right as often as the two distributions agree.
class ModelDrafter : public Drafter {
 public:
  // `options`: those of the engine it drafts for. `draft` must outlive it. Throws Error if its vocabulary is another.
  ModelDrafter(const EngineModel& draft, const ModelSpec& target, const EngineOptions& options);

  void propose(std::span<Sequence* const> sequences, std::span<const uint32_t> most) override;
  void forget(SequenceId sequence) override;
  void forget_all() override;

 private:
  struct State {
    PageTable table;
    std::vector<TokenId> fed;  // tokens whose keys and values are in pages
  };
  // The state of a sequence, taken back to what it still has in common with it.
  State& caught_up(const Sequence& sequence);
  void compute_prompt(const Sequence& sequence, State& state);
  bool feed(State& state, std::span<const TokenId> tokens);
  StepOutput run(StepInput input, std::span<const PageTable* const> tables);

  EngineModel draft_;
  uint32_t context_, chunk_;
  KvCache kv_;
  Runner runner_;
  std::map<SequenceId, State> states_;
};

}  // namespace quire
