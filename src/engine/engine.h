#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "engine/request.h"
#include "engine/sampler.h"
#include "engine/scheduler.h"
#include "kv/kv_cache.h"
#include "model/decoder.h"

namespace quire {

struct EngineOptions {
  uint32_t context = 0;  // tokens of one sequence, prompt and answer; 0: what the model was trained for
  uint32_t max_sequences = 1;
  uint32_t prefill_chunk = 512;
  KvFormat key_format = KvFormat::f16;
  KvFormat value_format = KvFormat::f16;
  bool kv_cache = true;  // false: pages are forgotten after each step and everything is computed anew
};

// What the engine needs of a model. All of it must outlive the engine.
struct EngineModel {
  const ModelSpec* spec = nullptr;
  const Weights* weights = nullptr;
  Backend* backend = nullptr;
  const Tokenizer* tokenizer = nullptr;  // null: answers have ids and no text
  std::vector<TokenId> end_tokens;       // the model's own
};

// The one who owns all mutable state: sequences, pages, the step. One thread calls it.
class Engine {
 public:
  Engine(const EngineModel& model, const EngineOptions& options);

  // Throws Error if the request can never run: an empty prompt, one that does not fit the context, bad
  // options.
  SequenceId submit(Request request);
  // Frees all the sequence held. Nothing happens if it has finished.
  void cancel(SequenceId id);
  // Computes one step of all that run. False if there was nothing to do.
  bool step();
  // The answer of a sequence once it has finished, given out once.
  std::optional<Answer> take_answer(SequenceId id);
  // Submits, steps until it has finished, and gives the answer.
  Answer run(Request request);

  const KvCache& kv() const { return kv_; }
  uint32_t context() const { return options_.context; }

 private:
  void settle(const StepPlan& plan, std::span<const SampleResult> results);
  void add_token(Sequence& sequence, const SampleResult& result);
  FinishReason why_finished(Sequence& sequence, TokenId token) const;
  void finish(Sequence& sequence);

  EngineModel model_;
  EngineOptions options_;
  KvCache kv_;
  Decoder decoder_;
  Scheduler scheduler_;
  Sampler sampler_;
  uint32_t next_id_ = 0;
  std::vector<std::pair<SequenceId, Answer>> answers_;
};

}  // namespace quire
