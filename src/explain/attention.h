#pragma once

#include <cstdint>
#include <vector>

#include "engine/engine.h"
#include "model/head_place.h"

namespace quire {

// Which head is looked at, and how much of the prompt an earlier request has left in the cache.
struct AttentionChoice {
  uint32_t layer = 0, head = 0;
  uint32_t cached = 0;  // tokens
};

// One forward pass, as the chosen layer's attention has it.
struct AttentionPass {
  uint32_t begin = 0;        // position of its first token: the rows before it are in the cache
  uint32_t tokens = 0;       // rows of Q, K and V that it computes
  uint32_t cached_rows = 0;  // rows of K and V that it reads from the cache; a window hides some
  uint64_t computed_pairs = 0, cached_pairs = 0;  // pairs of a query and a key, by where the key comes from
};

// Where one token looks: the share that each token up to itself has in the sum of the values.
struct AttentionRow {
  uint32_t position = 0;
  uint32_t pass = 0;          // which of AttentionTrace::passes computed it
  uint32_t first = 0;         // the first token it sees: behind it lies what a window hides
  std::vector<float> shares;  // [position + 1]

  double sum() const;  // 1, or less by what a sink takes
};

struct AttentionTrace : HeadPlace {
  uint32_t prompt_tokens = 0;
  uint32_t cached = 0;
  std::vector<TokenId> tokens;  // prompt and answer, all that was fed
  std::vector<TokenId> answer;  // its last token was drawn and never fed
  std::vector<AttentionPass> passes;
  std::vector<AttentionRow> rows;  // of the tokens that the passes computed
};

// Answers a request and looks at one head on the way: prefill in chunks of `engine.prefill_chunk`, then a pass for each token of
// the answer. Throws Error if there is no such layer or head. REQUIRES: fewer tokens are cached than the prompt has.
AttentionTrace trace_attention(const EngineModel& model, const EngineOptions& engine, const Request& request,
                               const AttentionChoice& choice);

}  // namespace quire
