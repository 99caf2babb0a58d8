#include "explain/attention.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "engine/text_runner.h"
#include "explain/passes.h"

namespace quire {
namespace {

// Taps that give where every token of a pass looks, one after the other.
std::vector<Tap> taps_of(const AttentionTrace& trace, const AttentionPass& pass, size_t& values) {
  std::vector<Tap> taps;
  for (uint32_t i = 0; i < pass.tokens; ++i) {
    const uint32_t width = pass.begin + i + 1;
    taps.push_back(
        {.layer = trace.layer, .token = i, .first_head = trace.head, .width = width, .at = values});
    values += width;
  }
  return taps;
}

void add_rows(AttentionTrace& trace, const AttentionPass& pass, std::span<const float> values) {
  for (uint32_t i = 0; i < pass.tokens; ++i) {
    const uint32_t position = pass.begin + i, width = position + 1;
    trace.rows.push_back({.position = position,
                          .pass = uint32_t(trace.passes.size() - 1),
                          .first = trace.window == 0 ? 0 : width - std::min(width, trace.window),
                          .shares = {values.begin(), values.begin() + width}});
    values = values.subspan(width);
  }
}

// What the pass's rows saw, by where it came from.
void count_pairs(AttentionTrace& trace) {
  for (const AttentionRow& row : trace.rows) {
    AttentionPass& pass = trace.passes[row.pass];
    const uint32_t fresh = std::max(row.first, pass.begin);  // the first key of this pass that it sees
    pass.computed_pairs += row.position + 1 - fresh;
    pass.cached_pairs += fresh - row.first;
    // The pass's first row reaches back farthest.
    pass.cached_rows = std::max(pass.cached_rows, fresh - row.first);
  }
}

}  // namespace

double AttentionRow::sum() const {
  return std::accumulate(shares.begin(), shares.end(), 0.0);
}

AttentionTrace trace_attention(const EngineModel& model, const EngineOptions& engine, const Request& request,
                               const AttentionChoice& choice) {
  AttentionTrace trace;
  static_cast<HeadPlace&>(trace) = place_of_head(*model.spec, choice.layer, choice.head);
  trace.prompt_tokens = uint32_t(request.prompt.size());
  trace.cached = choice.cached;
  CHECK(trace.cached < trace.prompt_tokens);
  // An engine finds the answer; then the same passes are made again and looked at. They give the same, bit for bit.
  trace.answer = trace_passes(model, engine, request, 0).answer;
  trace.tokens = request.prompt;
  trace.tokens.insert(trace.tokens.end(), trace.answer.begin(), trace.answer.end() - 1);

  const uint32_t longest = std::max(engine.prefill_chunk, trace.cached);
  TextRunner runner(model, engine.kv_formats, uint32_t(trace.tokens.size()), longest);
  const std::span<const TokenId> tokens = trace.tokens;
  if (trace.cached > 0) runner.compute(tokens.first(trace.cached), TextRunner::Wanted::last_row);
  while (runner.done() < tokens.size()) {
    const uint32_t begin = runner.done();
    const uint32_t count =
        begin < trace.prompt_tokens ? std::min(engine.prefill_chunk, trace.prompt_tokens - begin) : 1;
    AttentionPass pass;
    pass.begin = begin;
    pass.tokens = count;
    trace.passes.push_back(pass);
    size_t values = 0;
    std::vector<Tap> taps = taps_of(trace, pass, values);
    const StepOutput output = runner.compute(tokens.subspan(begin, count), TextRunner::Wanted::last_row,
                                             std::move(taps), std::vector<float>(values));
    add_rows(trace, pass, output.values);
  }
  count_pairs(trace);
  return trace;
}

}  // namespace quire
