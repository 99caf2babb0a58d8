#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace quire {

// How the tokens of a prompt are told apart: those that later tokens will want, and the others.
enum class PruningPolicy : uint8_t {
  streaming,  // the first few and the most recent (StreamingLLM)
  snap,       // those that the last tokens of the prompt look at, head by head (SnapKV)
  zip,        // those that are looked at when the prompt is read a second time, head by head (KVzip)
  expected,  // those that queries like the last ones are expected to look at from later on (Expected Attention)
  evaluator_prompt,  // those that a few heads of one layer look at; the others are never computed further (EHPC)
  evaluator,         // the same, once the whole prompt is computed
};
// In the order in which recordings count them.
inline constexpr PruningPolicy kPruningPolicies[] = {
    PruningPolicy::streaming,        PruningPolicy::snap,     PruningPolicy::zip, PruningPolicy::expected,
    PruningPolicy::evaluator_prompt, PruningPolicy::evaluator};
std::string_view name(PruningPolicy policy);
PruningPolicy pruning_policy_from_name(std::string_view name);  // throws Error

// Whether it asks heads that must have been found for the model (EvaluatorHeads).
bool asks_evaluator(PruningPolicy policy);

// How many of the last tokens a policy keeps unless it is told otherwise: those that look, or a few where nobody needs them.
uint32_t usual_window(PruningPolicy policy);

// Heads of one layer that were found to look at what matters (quire kv-heads).
struct EvaluatorHeads {
  uint32_t layer = 0;
  std::vector<uint32_t> heads;
};

// What is kept of a prompt once it is computed. Exactly one of `share` and `tokens` is set.
struct PruningOptions {
  PruningPolicy policy = PruningPolicy::snap;
  double share = 0;               // of the tokens, above 0 and up to 1
  uint32_t tokens = 0;            // of each KV head
  uint32_t window = 32;           // the last so many always stay, and are those that look
  EvaluatorHeads evaluator = {};  // of the policies that ask them
  double measured = 0;  // the share of the answers that were kept so when somebody measured it; 0: nobody did
  uint32_t scored = 0;  // the first so many tokens of the prompt are pruned, the others stay; 0: all
  // What is left of those is found by later requests that begin with the same tokens and have them pruned the same way.
  bool is_shared = false;
  uint32_t multiple = 1;  // rows that stay are so many, or twice as many, ...

  // How many of `prompt` tokens stay: not fewer than the window.
  uint32_t kept_of(uint32_t prompt) const;
  void check() const;        // throws Error naming the first value that is out of range
  void check_heads() const;  // throws Error if its policy asks heads that are not known
};

// "50%" or "2000"; throws Error.
void read_kept(std::string_view text, PruningOptions& options);

}  // namespace quire
