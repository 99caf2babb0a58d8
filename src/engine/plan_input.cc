#include "engine/plan_input.h"

#include "engine/answer_constraint.h"

namespace quire {
namespace {

void add_tokens(const StepPlan::Run& run, StepInput& input) {
  const Sequence& sequence = *run.sequence;
  std::vector<TokenId> tokens;
  std::vector<uint32_t> positions;
  for (uint32_t i = 0; i < run.count + run.drafts; ++i) {
    const uint32_t token = sequence.token_of(sequence.rows() + i);
    const bool is_drawn = token >= sequence.tokens.size() && i < run.count;
    if (is_drawn) input.drawn.push_back({uint32_t(input.tokens.size()) + i, sequence.ahead.last_draw});
    positions.push_back(sequence.position_of(sequence.rows() + i));
    tokens.push_back(is_drawn ? 0 : i < run.count ? sequence.tokens[token] : sequence.drafts[i - run.count]);
  }
  input.add(tokens, positions, sequence.rows(), run.scored ? run.count : run.samples ? 1 + run.drafts : 0);
}

// What is drawn is nobody's; what it says of the token that follows is wanted. `first`: the run's first token.
void add_scores(const StepPlan::Run& run, uint32_t first, StepInput& input) {
  const Sequence& sequence = *run.sequence;
  for (uint32_t i = 0; i < run.count; ++i) {
    SampleParams how;
    how.top_logprobs = sequence.request.top_logprobs;
    how.watched = std::span(sequence.tokens).subspan(first + i + 1, 1);
    how.logprobs = true;
    input.add_draw(how);
  }
}

void add_draws(const StepPlan::Run& run, StepInput& input) {
  const Sequence& sequence = *run.sequence;
  std::map<TokenId, uint32_t> seen;
  std::vector<SampleParams::Seen> counts;
  const bool penalties = sequence.request.sampling.has_penalties();
  if (penalties) seen = sequence.seen;
  for (uint32_t draw = 0; draw <= run.drafts; ++draw) {
    if (draw > 0 && penalties) ++seen[sequence.drafts[draw - 1]];
    counts.clear();
    for (const auto& [token, in_answer] : seen) counts.push_back({token, in_answer});
    input.add_draw(draw_params(sequence, draw, counts));
  }
}

}  // namespace

SampleParams draw_params(const Sequence& sequence, uint32_t draft, std::span<const SampleParams::Seen> seen) {
  const SamplingOptions& options = sequence.request.sampling;
  return {.logits = {},
          .temperature = options.temperature,
          .top_k = options.top_k,
          .top_p = options.top_p,
          .min_p = options.min_p,
          .typical = options.typical,
          .repetition_penalty = options.repetition_penalty,
          .presence_penalty = options.presence_penalty,
          .frequency_penalty = options.frequency_penalty,
          .seen = seen,
          .logit_bias = options.logit_bias,
          .allowed = sequence.constraint ? sequence.constraint->allowed(draft) : std::span<const uint32_t>(),
          .seed = options.seed,
          .choice = sequence.request.choice,
          .position = uint32_t(sequence.tokens.size()) + sequence.ahead.drawing + draft,
          .top_logprobs = sequence.request.top_logprobs,
          .watched = sequence.request.watched,
          .logprobs = sequence.request.logprobs};
}

void add_draft_draw(const Sequence& sequence, StepInput& input) {
  std::vector<SampleParams::Seen> seen;
  if (sequence.request.sampling.has_penalties()) {
    std::map<TokenId, uint32_t> counts = sequence.seen;
    for (TokenId draft : sequence.drafts) ++counts[draft];
    for (const auto& [token, in_answer] : counts) seen.push_back({token, in_answer});
  }
  SampleParams how = draw_params(sequence, uint32_t(sequence.drafts.size()), seen);
  how.logprobs = false;
  input.add_draw(how);
}

StepInput input_of(const StepPlan& plan, KvCache& kv) {
  StepInput input;
  std::vector<const PageTable*> tables;
  for (const StepPlan::Run& run : plan.runs) {
    Sequence& sequence = *run.sequence;
    add_tokens(run, input);
    kv.begin_run(sequence.table, sequence.rows(), run.count, run.drafts);
    tables.push_back(&sequence.table);
    if (run.scored) add_scores(run, sequence.token_of(sequence.rows()), input);
    sequence.ahead.rows += run.count;
    if (!run.samples) continue;
    sequence.ahead.last_draw = uint32_t(input.draws.size());
    add_draws(run, input);
    ++sequence.ahead.drawing;
  }
  input.tables = kv.flatten(tables);
  return input;
}

}  // namespace quire
