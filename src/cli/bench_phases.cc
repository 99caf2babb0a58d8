#include "cli/bench_phases.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "base/check.h"
#include "base/clock.h"

namespace quire::cli {

std::string_view name(Phase phase) {
  return phase == Phase::prefill ? "prefill" : "decode";
}

PhaseRunner::PhaseRunner(const ModelSpec& spec, const Weights& weights, Backend& backend,
                         const Options& options)
    : model_{&spec, &weights, &backend},
      options_(options),
      layout_(make_kv_layout(kv_shapes(spec, options.kv_formats))),
      cost_(weights, backend) {
  // One page is computed. This also brings the weights into memory, where they are in a run of any length.
  const uint32_t tokens = std::min(kPageTokens, spec.context);
  Pages pages(model_, layout_, pages_for(layout_, tokens, tokens, 1));
  std::vector<PageTable> tables(1, pages.kv.make_table());
  const StepShape shape{.sequences = 1, .tokens = tokens, .depth = 0, .logit_rows = 1};
  pages.runner.collect(launch(pages, tables, shape));
  KvMoves moves;
  for (uint32_t g = 0; g < layout_.groups.size(); ++g) {
    std::vector<std::byte>& page = sample_pages_.emplace_back(layout_.groups[g].page_bytes);
    const PageTable& table = tables[0];
    const PageId first = g == layout_.states ? table.states().back().page.id() : table.pages(g)[0]->id();
    moves.list.push_back({.group = g,
                          .bytes = page.size(),
                          .from = first.value * uint64_t(page.size()),
                          .host_to = page.data()});
  }
  pages.runner.make(moves);
}

std::vector<uint32_t> PhaseRunner::page_counts(const PhaseShape& shape) const {
  return pages_for(layout_, shape.depth + shape.tokens, options_.prefill_chunk, shape.batch);
}

size_t PhaseRunner::kv_bytes(const PhaseShape& shape) const {
  return quire::kv_bytes(layout_, page_counts(shape));
}

PhaseRun PhaseRunner::run(const PhaseShape& shape) {
  Pages pages(model_, layout_, page_counts(shape));
  {
    // Memory is handed out when it is first written: that is no part of a phase.
    std::vector<PageTable> tables(shape.batch, pages.kv.make_table());
    for (PageTable& table : tables) fill(pages, table, shape.depth + shape.tokens);
  }
  PhaseRun first = repetition(pages, shape);
  if (first.seconds >= options_.least_seconds) return first;
  PhaseRun sum;  // without the first, which warmed up
  do {
    const PhaseRun run = repetition(pages, shape);
    sum.seconds += run.seconds;
    sum.tokens += run.tokens;
    sum.cost += run.cost;
  } while (sum.seconds < options_.least_seconds);
  return sum;
}

PhaseRun PhaseRunner::repetition(Pages& pages, const PhaseShape& shape) {
  std::vector<PageTable> tables(shape.batch, pages.kv.make_table());
  for (PageTable& table : tables) fill(pages, table, shape.depth);
  const uint32_t chunk = shape.phase == Phase::prefill ? options_.prefill_chunk : 1;
  PhaseRun run;
  std::deque<StepHandle> flying;
  const auto collect_down_to = [&](size_t left) {
    for (; flying.size() > left; flying.pop_front()) pages.runner.collect(flying.front());
  };
  const size_t ahead = model_.backend->traits().pipeline - 1;
  const auto start = Clock::now();
  for (uint32_t done = 0; done < shape.tokens;) {
    const uint32_t count = std::min(chunk, shape.tokens - done);
    const bool wants_logits = shape.phase == Phase::decode || done + count == shape.tokens;
    const StepShape step_shape{.sequences = shape.batch,
                               .tokens = count,
                               .depth = shape.depth + done,
                               .logit_rows = wants_logits ? shape.batch : 0};
    flying.push_back(launch(pages, tables, step_shape));
    collect_down_to(ahead);
    run.cost += cost_.step(step_shape, layout_);
    done += count;
  }
  collect_down_to(0);
  run.seconds = milliseconds_between(start, Clock::now()) / 1e3;
  run.tokens = double(shape.tokens) * shape.batch;
  return run;
}

void PhaseRunner::fill(Pages& pages, PageTable& table, uint32_t tokens) const {
  for (uint32_t done = 0; done < tokens;) {
    const uint32_t count = std::min(options_.prefill_chunk, tokens - done);
    CHECK(pages.kv.reserve(table, done + count));
    KvMoves moves;
    for (uint32_t g = 0; g < layout_.groups.size(); ++g) {
      if (g == layout_.states) continue;
      const uint32_t page_tokens = layout_.groups[g].page_tokens;
      for (uint32_t page = done / page_tokens; page * page_tokens < done + count; ++page) {
        const size_t bytes = sample_pages_[g].size();
        moves.list.push_back({.group = g,
                              .bytes = bytes,
                              .to = table.pages(g)[page]->id().value * uint64_t(bytes),
                              .host_from = sample_pages_[g].data()});
      }
    }
    pages.runner.make(moves);
    done += count;
    pages.kv.release_behind_window(table, done);
  }
  if (!layout_.has_states() || tokens == 0) return;
  pages.kv.begin_run(table, 0, tokens);
  const size_t bytes = layout_.state_bytes();
  KvMoves moves;
  moves.list.push_back({.group = *layout_.states,
                        .bytes = bytes,
                        .to = table.states().back().page.id().value * uint64_t(bytes),
                        .host_from = sample_pages_[*layout_.states].data()});
  pages.runner.make(moves);
}

StepHandle PhaseRunner::launch(Pages& pages, std::span<PageTable> tables, const StepShape& shape) {
  StepInput input;
  std::vector<const PageTable*> of_run;
  for (PageTable& table : tables) {
    CHECK(pages.kv.reserve(table, shape.depth + shape.tokens));
    pages.kv.begin_run(table, shape.depth, shape.tokens);
    std::vector<TokenId> tokens;
    for (uint32_t i = 0; i < shape.tokens; ++i) tokens.push_back(TokenId(random_() % model_.spec->vocab));
    input.add(tokens, shape.depth, shape.logit_rows > 0 ? StepInput::Logits::last : StepInput::Logits::none);
    of_run.push_back(&table);
  }
  input.tables = pages.kv.flatten(of_run);
  const StepHandle handle = pages.runner.launch(std::move(input));
  for (PageTable& table : tables) pages.kv.release_behind_window(table, shape.depth + shape.tokens);
  return handle;
}

}  // namespace quire::cli
