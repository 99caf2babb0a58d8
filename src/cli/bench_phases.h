#pragma once

#include <random>
#include <span>
#include <vector>

#include "kv/kv_cache.h"
#include "model/cost.h"
#include "runner/runner.h"

namespace quire::cli {

enum class Phase : uint8_t { prefill, decode };
std::string_view name(Phase phase);

struct PhaseShape {
  Phase phase = Phase::prefill;
  uint32_t tokens = 0;  // of each sequence: computed in chunks in prefill, one a step in decode
  uint32_t batch = 1;   // sequences side by side
  uint32_t depth = 0;   // tokens that are cached before the phase begins
};

struct PhaseRun {
  double seconds = 0;
  double tokens = 0;
  StepCost cost;  // of all that was computed in these seconds
};

// Runs phases of a model on random tokens: steps over pages, without an engine or a tokenizer. What a phase finds
// cached was not computed for it: every page is a copy of one that was, with finite rows as good as any for speed.
class PhaseRunner {
 public:
  struct Options {
    KvFormats kv_formats = {};
    uint32_t prefill_chunk = 512;
    double least_seconds = 2;  // a phase is repeated until it has lasted as long
  };
  // All three must outlive the runner.
  PhaseRunner(const ModelSpec& spec, const Weights& weights, Backend& backend, const Options& options);

  const KvLayout& layout() const { return layout_; }
  size_t kv_bytes(const PhaseShape& shape) const;
  PhaseRun run(const PhaseShape& shape);

 private:
  struct Pages {
    Pages(const RunnerModel& model, const KvLayout& layout, const std::vector<uint32_t>& counts)
        : kv(layout, counts), runner(model, layout, counts) {}
    KvCache kv;
    Runner runner;
  };
  std::vector<uint32_t> page_counts(const PhaseShape& shape) const;
  // Makes the first `tokens` positions of a sequence look computed.
  void fill(Pages& pages, PageTable& table, uint32_t tokens) const;
  PhaseRun repetition(Pages& pages, const PhaseShape& shape);
  // Computes `shape.tokens` tokens of every table.
  StepHandle launch(Pages& pages, std::span<PageTable> tables, const StepShape& shape);

  const RunnerModel model_;
  const Options options_;
  KvLayout layout_;
  CostModel cost_;
  std::mt19937 random_{1};
  std::vector<std::vector<std::byte>> sample_pages_;  // by layer group
};

}  // namespace quire::cli
