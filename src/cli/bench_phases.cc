#include "cli/bench_phases.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/clock.h"

namespace quire::cli {

std::string_view name(Phase phase) {
  return phase == Phase::prefill ? "prefill" : "decode";
}

PhaseRunner::PhaseRunner(const ModelSpec& spec, const Weights& weights, Backend& backend,
                         const Options& options)
    : spec_(spec),
      backend_(backend),
      options_(options),
      layout_(make_kv_layout(kv_shapes(spec, options.kv_formats))),
      cost_(weights, backend),
      decoder_(spec, weights, backend) {
  // One page is computed. This also brings the weights into memory, where they are in a run of any length.
  const uint32_t tokens = std::min(kPageTokens, spec.context);
  KvCache kv(layout_, pages_for(layout_, tokens, tokens, 1),
             [&](size_t bytes) { return backend_.allocate(bytes); });
  std::vector<PageTable> tables(1, kv.make_table());
  step(kv, tables, {.sequences = 1, .tokens = tokens, .depth = 0, .logit_rows = 1});
  const PageTable* table = tables.data();
  KvCache::FlatTables flat;
  for (const KvGroupView& group : kv.view({&table, 1}, flat)) {
    sample_pages_.emplace_back(group.page(0, 0), group.page(0, 0) + group.layout->page_bytes);
  }
}

std::vector<uint32_t> PhaseRunner::pages(const PhaseShape& shape) const {
  return pages_for(layout_, shape.depth + shape.tokens, options_.prefill_chunk, shape.batch);
}

size_t PhaseRunner::kv_bytes(const PhaseShape& shape) const {
  return quire::kv_bytes(layout_, pages(shape));
}

PhaseRun PhaseRunner::run(const PhaseShape& shape) {
  KvCache kv(layout_, pages(shape), [&](size_t bytes) { return backend_.allocate(bytes); });
  {
    // Memory is handed out when it is first written: that is no part of a phase.
    std::vector<PageTable> tables(shape.batch, kv.make_table());
    for (PageTable& table : tables) fill(kv, table, shape.depth + shape.tokens);
  }
  PhaseRun first = repetition(kv, shape);
  if (first.seconds >= options_.least_seconds) return first;
  PhaseRun sum;  // without the first, which warmed up
  do {
    const PhaseRun run = repetition(kv, shape);
    sum.seconds += run.seconds;
    sum.tokens += run.tokens;
    sum.cost += run.cost;
  } while (sum.seconds < options_.least_seconds);
  return sum;
}

PhaseRun PhaseRunner::repetition(KvCache& kv, const PhaseShape& shape) {
  std::vector<PageTable> tables(shape.batch, kv.make_table());
  for (PageTable& table : tables) fill(kv, table, shape.depth);
  const uint32_t chunk = shape.phase == Phase::prefill ? options_.prefill_chunk : 1;
  PhaseRun run;
  for (uint32_t done = 0; done < shape.tokens;) {
    const uint32_t count = std::min(chunk, shape.tokens - done);
    const bool wants_logits = shape.phase == Phase::decode || done + count == shape.tokens;
    const StepShape step_shape{.sequences = shape.batch,
                               .tokens = count,
                               .depth = shape.depth + done,
                               .logit_rows = wants_logits ? shape.batch : 0};
    const auto start = Clock::now();
    step(kv, tables, step_shape);
    run.seconds += milliseconds_between(start, Clock::now()) / 1e3;
    run.cost += cost_.step(step_shape, layout_);
    done += count;
  }
  run.tokens = double(shape.tokens) * shape.batch;
  return run;
}

void PhaseRunner::fill(KvCache& kv, PageTable& table, uint32_t tokens) const {
  for (uint32_t done = 0; done < tokens;) {
    const uint32_t count = std::min(options_.prefill_chunk, tokens - done);
    CHECK(kv.reserve(table, done + count));
    const PageTable* tables[] = {&table};
    KvCache::FlatTables flat;
    const std::vector<KvGroupView> groups = kv.view(tables, flat);
    for (size_t g = 0; g < groups.size(); ++g) {
      const uint32_t page_tokens = groups[g].layout->page_tokens;
      for (uint32_t page = done / page_tokens; page * page_tokens < done + count; ++page) {
        std::memcpy(groups[g].page(0, page), sample_pages_[g].data(), sample_pages_[g].size());
      }
    }
    done += count;
    kv.release_behind_window(table, done);
  }
}

void PhaseRunner::step(KvCache& kv, std::span<PageTable> tables, const StepShape& shape) {
  std::vector<TokenId> tokens;
  std::vector<uint32_t> positions, run_of_token, logit_rows;
  std::vector<TokenRun> runs;
  std::vector<const PageTable*> of_run;
  for (PageTable& table : tables) {
    CHECK(kv.reserve(table, shape.depth + shape.tokens));
    const uint32_t run = uint32_t(runs.size());
    runs.push_back({uint32_t(tokens.size()), shape.tokens, shape.depth, shape.depth});
    of_run.push_back(&table);
    for (uint32_t i = 0; i < shape.tokens; ++i) {
      tokens.push_back(TokenId(random_() % spec_.vocab));
      positions.push_back(shape.depth + i);
      run_of_token.push_back(run);
    }
    if (shape.logit_rows > 0) logit_rows.push_back(uint32_t(tokens.size()) - 1);
  }
  KvCache::FlatTables flat;
  decoder_.forward({tokens, positions, run_of_token, runs, logit_rows}, layout_, kv.view(of_run, flat));
  for (PageTable& table : tables) kv.release_behind_window(table, shape.depth + shape.tokens);
}

}  // namespace quire::cli
