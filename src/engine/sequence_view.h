#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/request.h"

namespace quire {

struct Sequence;

// The figures of a sequence that runs or waits, as plain data that may leave the engine's thread.
struct SequenceFigures {
  enum class State : uint8_t { waiting, loading, prefill, decode };
  static constexpr size_t kMostMoments = 512, kMostChunks = 512;

  State state = State::waiting;
  RequestFigures counts;
  std::vector<RequestAccount::Chunk> chunks;  // the last of them
  uint32_t answer_tokens = 0;
  std::optional<double> ttft_ms;
  std::vector<Clock::time_point> token_times;  // the last of them
  uint32_t kv_pages = 0;
};

// A sequence that runs or waits, for those who look at it from outside: nothing of it can be changed. Engine thread only;
// valid until the next step.
class SequenceView {
 public:
  explicit SequenceView(const Sequence& sequence) : sequence_(&sequence) {}

  SequenceId id() const;
  const std::string& client() const;
  CacheSalt salt() const;
  const std::vector<TokenId>& prompt() const;
  const std::vector<TokenId>& tokens() const;  // the prompt, then the answer
  uint32_t answer_tokens() const;
  uint32_t computed() const;  // rows of keys and values that are in pages
  const PageTable& table() const;
  const Answer& answer() const;  // so far
  Clock::time_point submitted() const;
  const std::vector<Clock::time_point>& token_times() const;
  SequenceFigures figures() const;

 private:
  const Sequence* sequence_;
};

}  // namespace quire
