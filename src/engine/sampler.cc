#include "engine/sampler.h"

namespace quire {

bool has_penalties(const SamplingOptions& options) {
  return options.repetition_penalty != 1 || options.presence_penalty != 0 || options.frequency_penalty != 0;
}

SampleParams draw_params(const Sequence& sequence, uint32_t draw, std::span<const float> logits,
                         std::span<const SampleParams::Seen> seen) {
  const SamplingOptions& options = sequence.request.sampling;
  return {.logits = logits,
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
          .seed = options.seed,
          .choice = sequence.request.choice,
          .position = uint32_t(sequence.tokens.size()) + draw,
          .top_logprobs = sequence.request.top_logprobs,
          .watched = sequence.request.watched,
          .logprobs = sequence.request.logprobs};
}

std::span<const SampleResult> Sampler::sample(Backend& backend, const StepPlan& plan, const Rows& logits) {
  seen_.clear();
  params_.clear();
  for (const StepPlan::Run& run : plan.runs) {
    if (!run.samples) continue;
    const Sequence& sequence = *run.sequence;
    const bool penalties = has_penalties(sequence.request.sampling);
    std::map<TokenId, uint32_t> seen;
    if (penalties) seen = sequence.seen;
    for (uint32_t draw = 0; draw <= run.drafts; ++draw) {
      if (draw > 0 && penalties) ++seen[sequence.drafts[draw - 1]];
      std::vector<SampleParams::Seen>& counts = seen_.emplace_back();
      for (const auto& [token, in_answer] : seen) counts.push_back({token, in_answer});
      params_.push_back(draw_params(sequence, draw, {logits.row(params_.size()), logits.width}, counts));
    }
  }
  results_.resize(params_.size());
  backend.sample(params_, results_);
  return results_;
}

}  // namespace quire
