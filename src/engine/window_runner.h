#pragma once

#include <span>

#include "engine/engine.h"
#include "kv/kv_cache.h"
#include "model/decoder.h"

namespace quire {

// Computes one text from an empty context on, some tokens at a time, with all their logits. For measurements, which want
// nothing of an engine. One thread.
class WindowRunner {
 public:
  // For texts of at most `tokens`, computed `chunk` at a time. The model must outlive it.
  WindowRunner(const EngineModel& model, const KvFormats& formats, uint32_t tokens, uint32_t chunk);

  // The logits of the next tokens: one row for each, or of the last alone. Valid until the next call.
  enum class Wanted : uint8_t { all_rows, last_row };
  Rows compute(std::span<const TokenId> next, Wanted wanted = Wanted::all_rows,
               AttentionWatcher* watcher = nullptr);
  void restart();

  uint32_t done() const { return done_; }
  const KvLayout& layout() const { return layout_; }

 private:
  const KvLayout layout_;
  KvCache kv_;
  Decoder decoder_;
  PageTable table_;
  uint32_t done_ = 0;
};

}  // namespace quire
