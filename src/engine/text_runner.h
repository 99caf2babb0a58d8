#pragma once

#include <span>

#include "engine/engine.h"
#include "kv/kv_cache.h"
#include "runner/runner.h"

namespace quire {

// Computes one text from an empty context on, some tokens at a time, with all their logits. For measurements, which want
// nothing of an engine. One thread.
class TextRunner {
 public:
  // For texts of at most `tokens`, computed `chunk` at a time. What a layer's window has passed goes, or stays to be looked at.
  // The model must outlive it.
  enum class Passed : uint8_t { goes, stays };
  TextRunner(const EngineModel& model, const KvFormats& formats, uint32_t tokens, uint32_t chunk,
             Passed passed = Passed::goes);

  // What comes of the next tokens, with the logits of each or of the last alone. `taps`: of tokens counted from the first of
  // these; they join `values`.
  enum class Wanted : uint8_t { all_rows, last_row };
  StepOutput compute(std::span<const TokenId> next, Wanted wanted = Wanted::all_rows,
                     std::vector<Tap> taps = {}, std::vector<float> values = {});
  // The next tokens without logits; what their products read joins `values`, and comes back.
  std::vector<float> sum_columns(std::span<const TokenId> next, std::vector<ColumnTap> columns,
                                 std::vector<float> values);
  // Of the rows that are computed.
  std::vector<float> expect(std::vector<Expectation> expectations, std::vector<float> values);
  // The bytes of one head's key or value row.
  enum class Which : uint8_t { key, value };
  struct RowPlace {
    uint32_t layer = 0, head = 0, row = 0;
    Which which = Which::key;
  };
  std::vector<std::byte> bytes(const RowPlace& place);
  void restart();

  uint32_t done() const { return done_; }
  const KvLayout& layout() const { return kv_.layout(); }

 private:
  // A step of the next tokens, which asks for nothing yet; and what comes of it.
  StepInput begin(std::span<const TokenId> next, StepInput::Logits logits);
  StepOutput finish(StepInput input);

  KvCache kv_;
  Runner runner_;
  PageTable table_;
  const Passed passed_;
  uint32_t done_ = 0;
};

}  // namespace quire
