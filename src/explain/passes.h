#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/engine.h"

namespace quire {

// One forward pass of a request that runs alone.
struct Pass {
  uint32_t begin = 0;        // position of its first token
  std::vector<TokenId> fed;  // what it computed
  uint32_t entries_before = 0;
  uint32_t entries_after = 0;  // tokens whose keys and values are in pages
  double ms = 0;
  // Drawn from the logits of its last row, if that is the last known token.
  struct Draw {
    TokenId token = 0;
    double probability = 0;            // by the model itself, before temperature and filters
    std::vector<TokenLogprob> rivals;  // the likeliest others, best first
  };
  std::optional<Draw> drawn;
};

struct PassTrace {
  std::vector<Pass> passes;
  std::vector<TokenId> answer;
  uint32_t prompt_tokens = 0;
  FinishReason finish_reason = FinishReason::none;

  uint32_t entries_left() const { return passes.back().entries_after; }
};

// Runs a request with the cache and writes down each pass, with so many rivals of each token.
PassTrace trace_passes(const EngineModel& model, EngineOptions engine, const Request& request,
                       uint32_t rivals);

}  // namespace quire
