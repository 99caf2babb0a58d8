#pragma once

#include <cstdint>
#include <vector>

#include "engine/engine.h"

namespace quire {

// A request as a load has it. Time is counted in passes of the engine: so every way of batching meets the same arrivals
// on every machine, and all that is counted is the same in every run.
struct Arrival {
  uint32_t pass = 0;  // it is there before this pass
  std::vector<TokenId> prompt;
  uint32_t max_tokens = 0;     // what it asks for: all that is known beforehand
  uint32_t answer_tokens = 0;  // where its answer ends
};

struct LoadShape {
  uint32_t requests = 12;
  uint64_t seed = 1;
  uint32_t longest_prompt = 96;
  uint32_t longest_answer = 64;
  uint32_t vocab = 0;
};
// Prompts and answers of an eighth of the longest up to the longest, of random tokens; each asks for the longest answer,
// and several arrive while one answers.
std::vector<Arrival> make_load(const LoadShape& shape);

struct BatchingWay {
  enum class Admission : uint8_t {
    continuous,
    fixed
  } admission;  // fixed: a batch runs to its end before the next
  enum class Room : uint8_t {
    paged,
    contiguous
  } room;  // contiguous: prompt and max_tokens are reserved at the start
};

struct BatchingOptions {
  uint32_t at_once = 8;  // most that run together
  size_t kv_bytes = 0;   // 0: what three of the longest requests need
};

// What became of one request, in passes.
struct RequestStory {
  uint32_t arrived = 0;
  uint32_t admitted = 0;               // handed to the engine
  std::vector<uint32_t> token_passes;  // in which each token of its answer was drawn
  std::vector<TokenId> tokens;
};

// One pass, and what the memory held after it. Bytes reserved are what the way of the room takes for those that run.
struct PassAccount {
  double ms = 0;  // 0: nobody was there
  uint32_t running = 0;
  uint32_t holding = 0;  // sequences that hold room after it
  size_t used_bytes = 0, reserved_bytes = 0;
};

struct BatchingFigures {
  BatchingWay way{};
  size_t kv_bytes = 0;  // that there were
  std::vector<RequestStory> stories;
  std::vector<PassAccount> passes;
  uint64_t preemptions = 0;

  uint32_t worked_passes() const;
  uint64_t answer_tokens() const;
  double seconds() const;
  double tokens_per_second() const { return double(answer_tokens()) / seconds(); }
  uint32_t most_running() const;
  double mean_running() const;  // over the passes in which somebody ran
  double mean_unused_bytes() const;
  double unused_share() const;  // of what was reserved, over all passes
  double fitting() const;       // sequences that the bytes would have room for, by what one held on average
  std::vector<double> gaps_ms() const;         // between the tokens of an answer
  std::vector<double> waits_ms() const;        // for the first token, by request
  std::vector<uint32_t> waits_passes() const;  // the pass of the first token included
};

// Runs the load on the model in one way.
BatchingFigures run_batching(const EngineModel& model, EngineOptions engine, const std::vector<Arrival>& load,
                             const BatchingWay& way, const BatchingOptions& options);
// Throws Error if an answer of one is not the other's.
void check_same_answers(const BatchingFigures& a, const BatchingFigures& b);

// The least of them that no more than this share of them exceed; 0 of none.
double percentile_of(std::vector<double> values, double share);
double mean_of(const std::vector<double>& values);

}  // namespace quire
