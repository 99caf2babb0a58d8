#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/sample.h"
#include "base/clock.h"
#include "base/id.h"
#include "engine/pruning/budget_options.h"
#include "engine/pruning/pruning_options.h"
#include "kv/kv_cache.h"
#include "kv/tiers/stored_page.h"
#include "model/pooling.h"

namespace quire {

namespace grammar {
class Grammar;
}

// How tokens are chosen. Values that switch something off are the defaults, but for the temperature.
struct SamplingOptions {
  float temperature = 0.8f;  // 0: greedy
  uint32_t top_k = 0;
  float top_p = 1;
  float min_p = 0;
  float typical = 1;
  float repetition_penalty = 1;
  float presence_penalty = 0;
  float frequency_penalty = 0;
  std::vector<std::pair<TokenId, float>> logit_bias = {};
  uint64_t seed = 0;

  bool has_penalties() const {
    return repetition_penalty != 1 || presence_penalty != 0 || frequency_penalty != 0;
  }
  // Throws Error naming the first value that is out of range.
  void check() const;
};

enum class FinishReason : uint8_t {
  none,
  stop,
  length,
  cancelled,
  deadline,  // it was not done in time
  no_room,   // what is pinned leaves too few pages for it
  failed,    // the step that served it, or who was told of its tokens, could not go on
};
std::string_view name(FinishReason reason);

// One token of an answer, as it comes.
struct TokenEvent {
  TokenId token = 0;
  uint32_t choice = 0;  // of several answers to the same prompt
  std::string
      text;  // what can be shown now: complete characters, nothing that may turn out to be a stop string
  float logprob = 0;
  std::vector<TokenLogprob> top_logprobs;
  std::vector<TokenRank> watched;
  bool guessed = false;                // a drafter had guessed it
  std::vector<TokenId> wrong_guesses;  // what a drafter had guessed from here on, in vain
};

// A head whose attention a request tells as it is computed.
struct HeadWatch {
  static constexpr uint32_t kMostTokens = 2048;  // of a prompt: there is a share for every pair of them

  uint32_t layer = 0, head = 0;
  uint32_t first = 0;  // tokens before it are not told of, and may come from the cache
  // Where the token at `position` looks: the shares of all tokens up to itself. Called once for each, in their order, by the
  // engine's thread; whatever is computed again after a preemption is not told again.
  std::function<void(uint32_t position, std::span<const float> shares)> on_row;
};

// How likely the model found one token of a prompt after all before it.
struct PromptScore {
  static constexpr uint32_t kMostRows =
      64;  // of logits that a step computes for it, of all requests together

  uint32_t position = 0;  // in the prompt, from 1: nothing comes before the first
  TokenId token = 0;
  double loss = 0;  // in nats, the same bits as `quire perplexity` has
  std::vector<TokenLogprob> top_logprobs;
};

// The prompt as one vector, and no answer.
struct EmbeddingWish {
  Pooling pooling = Pooling::last;
  // Told of it once, by the engine's thread: what the model makes of the tokens after its last norm, pooled. Its length is what it
  // happens to be.
  std::function<void(std::vector<float>)> on_vector;
};

// The immutable ask, and where its output goes.
struct Request {
  std::vector<TokenId> prompt;
  SamplingOptions sampling;
  uint32_t max_tokens =
      0;  // 0: as many as the context has room for; with a budget, as the context has tokens
  std::vector<std::string> stop;
  std::vector<TokenId> stop_tokens;         // besides the model's own end tokens
  bool ignore_end = false;                  // goes on past the model's end tokens
  std::vector<TokenId> shown_special = {};  // special tokens that are part of the text; in order
  uint32_t choice = 0;                      // which of several answers to the same prompt
  int32_t priority = 0;                     // the higher goes first, and may take the room of a lower one
  std::string client;                       // clients get fair shares within a priority
  CacheSalt salt = {};                      // it shares pages only with requests of the same salt
  std::optional<Clock::time_point> deadline;
  bool logprobs = false;
  uint32_t top_logprobs = 0;
  std::optional<PruningOptions> pruning;           // what is kept of the prompt; nothing: all
  std::optional<BudgetOptions> budget = {};        // of its rows, prompt and answer; nothing: none
  std::optional<HeadWatch> watch = {};             // where one of its heads looks
  std::shared_ptr<grammar::Grammar> grammar = {};  // that its answer keeps to; null: none
  std::vector<TokenId> watched;                    // with logprobs: tokens whose ranks each event tells
  // Told of every token of the prompt but the first, once and in their order, by the engine's thread. Then the whole prompt
  // is computed, whatever is cached. Empty: not wanted.
  std::function<void(const PromptScore&)> on_prompt_score = {};
  std::optional<EmbeddingWish> embedding = {};
  // Somebody else will go on with its prompt: the answer is told when the prompt's pages are in the shared store, and says so.
  bool hands_over = false;
  std::optional<HandOver> handed_over = {};         // what another server has said of its prompt
  std::function<void(const TokenEvent&)> on_token;  // called by the engine's thread; may be empty
};

// What a token waited for, besides its own computation.
enum class GapCause : uint8_t { none, prefill_of_another, preemption, eviction };
inline constexpr size_t kGapCauses = size_t(GapCause::eviction) + 1;
std::string_view name(GapCause cause);

// What became of asking a shared store for pages of a prompt.
enum class StoreOutcome : uint8_t {
  not_asked,    // there is none, or all was here
  came,         // pages came
  nothing,      // it had none of what was missing
  slower,       // computing was predicted to be faster
  late,         // it took longer than computing would have
  unreachable,  // it does not answer, or did not lately
  refused,      // a page was not what it should be
};
std::string_view text(StoreOutcome outcome);

// Where a request's time went, in numbers.
struct RequestFigures {
  double queue_ms = 0;  // until its first token was computed
  uint32_t cached_tokens = 0;
  uint32_t host_tokens = 0;    // of those: that had to be brought back from the host's memory
  double host_ms = 0;          // of the queue: that it waited for them
  uint32_t disk_tokens = 0;    // of those: that had to be brought back from the disk
  double disk_ms = 0;          // of the queue: that it waited for the disk
  uint32_t remote_tokens = 0;  // of those: that came from the shared store
  double remote_ms = 0;        // of the queue: that it waited for the store
  StoreOutcome store = StoreOutcome::not_asked;
  PrefixMiss miss;  // why no more was cached
  uint32_t preemptions = 0;
  uint32_t drafted = 0, accepted = 0;  // tokens of a drafter
  uint32_t pruned_tokens = 0;          // of the prompt, in the layers that see everything
  // How its prompt was pruned, which share of it stayed, and the share of the answers that were kept so when somebody measured it (0:
  // nobody did); nothing: it was not.
  struct Kept {
    PruningPolicy policy;
    double share = 1, answers = 0;
    std::string document = {};  // as which it is shared; empty: it is not
  };
  std::optional<Kept> kept = {};
  uint32_t budget_rows = 0;                       // most that it may have; 0: all stay
  uint32_t budget_step = 0;                       // so many of them go at a time
  uint32_t forgotten_tokens = 0;                  // of prompt and answer, that have no row any more
  uint32_t counted_anew = 0;                      // so often had its positions come to the context's end
  double choosing_ms = 0;                         // which of its rows stay, where that computes no token
  std::array<uint32_t, kGapCauses> gap_causes{};  // gaps, by their cause
};

// The same, step by step.
struct RequestAccount : RequestFigures {
  struct Chunk {
    double at_ms = 0;  // since it was submitted
    double took_ms = 0;
    uint32_t tokens = 0;
    uint32_t step_tokens = 0;                        // of all sequences in that step
    uint32_t entries_before = 0, entries_after = 0;  // rows of keys and values that it had in pages
  };
  struct Gap {
    float ms = 0;
    GapCause cause = GapCause::none;
    bool same_pass = false;  // the token came from the pass that drew the one before: a guess was right
  };
  std::vector<Chunk> prefill;
  std::vector<Gap> gaps;  // before each token of the answer but the first
};

struct Timings {
  double ttft_ms = 0;
  double itl_ms_p50 = 0;
  double itl_ms_p99 = 0;
  double prefill_tok_s = 0;  // of the tokens that were not cached
  double decode_tok_s = 0;
};

// An answer once it is complete.
struct Answer {
  std::string text;
  std::vector<TokenId> tokens;  // the end token included
  std::vector<float> logprobs;  // if asked for
  uint32_t prompt_tokens = 0;
  FinishReason finish_reason = FinishReason::none;
  std::string problem;        // of one that failed, if it is known
  std::string stop;           // the stop text that ended it, if one did
  bool context_full = false;  // it was the context that ended it
  Timings timings;
  uint32_t kv_pages = 0;  // at its end
  size_t kv_bytes = 0;
  RequestAccount account;
  std::optional<HandOver> hand_over = {};  // of a request that hands over: what is in the store by now
};

}  // namespace quire
