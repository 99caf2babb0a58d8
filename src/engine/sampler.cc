#include "engine/sampler.h"

namespace quire {
namespace {

bool has_penalties(const SamplingOptions& options) {
  return options.repetition_penalty != 1 || options.presence_penalty != 0 || options.frequency_penalty != 0;
}

}  // namespace

std::span<const SampleResult> Sampler::sample(Backend& backend, const StepPlan& plan, const Rows& logits) {
  seen_.assign(plan.runs.size(), {});
  params_.clear();
  for (size_t i = 0; i < plan.runs.size(); ++i) {
    if (!plan.runs[i].samples) continue;
    const Sequence& sequence = *plan.runs[i].sequence;
    const SamplingOptions& options = sequence.request.sampling;
    if (has_penalties(options)) {
      for (const auto& [token, in_answer] : sequence.seen) seen_[i].push_back({token, in_answer});
    }
    params_.push_back({.logits = {logits.row(params_.size()), logits.width},
                       .temperature = options.temperature,
                       .top_k = options.top_k,
                       .top_p = options.top_p,
                       .min_p = options.min_p,
                       .typical = options.typical,
                       .repetition_penalty = options.repetition_penalty,
                       .presence_penalty = options.presence_penalty,
                       .frequency_penalty = options.frequency_penalty,
                       .seen = seen_[i],
                       .logit_bias = options.logit_bias,
                       .seed = options.seed,
                       .choice = sequence.request.choice,
                       .position = uint32_t(sequence.tokens.size()),
                       .top_logprobs = sequence.request.top_logprobs,
                       .logprobs = sequence.request.logprobs});
  }
  results_.resize(params_.size());
  backend.sample(params_, results_);
  return results_;
}

}  // namespace quire
