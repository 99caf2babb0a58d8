#include "backend/cuda/sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "backend/cuda/sampling/sample_kernels.h"
#include "base/check.h"

namespace quire::cuda {
namespace {

static_assert(Sampler::kMostTopLogprobs == kMostTop);

template <class Range, class Token>
bool has_repeats(const Range& range, const Token& token) {
  std::vector<TokenId> tokens;
  for (const auto& entry : range) tokens.push_back(token(entry));
  std::sort(tokens.begin(), tokens.end());
  return std::adjacent_find(tokens.begin(), tokens.end()) != tokens.end();
}

bool is_for_cpu(const SampleParams& params) {
  return params.typical < 1 || !params.allowed.empty() || !params.watched.empty() ||
         params.top_logprobs > Sampler::kMostTopLogprobs ||
         has_repeats(params.logit_bias, [](const auto& bias) { return bias.first; }) ||
         has_repeats(params.seen, [](const SampleParams::Seen& seen) { return seen.token; });
}

SamplePlan plan_of(const SampleParams& params, uint32_t vocabulary, std::vector<LogitChange>& changes) {
  SamplePlan plan = {
      .temperature = std::max(params.temperature, 0.0f),
      .top_k = params.top_k,
      .top_p = params.top_p,
      .log_min_p = params.min_p > 0 ? std::log(params.min_p) : -std::numeric_limits<float>::infinity(),
      .repetition_penalty = params.repetition_penalty,
      .presence_penalty = params.presence_penalty,
      .frequency_penalty = params.frequency_penalty,
      .key = {uint32_t(params.seed), uint32_t(params.seed >> 32)},
      .choice = params.choice,
      .position = params.position,
      .logprobs = params.logprobs ? 1u : 0u,
      .top_logprobs = params.top_logprobs,
      .skip = is_for_cpu(params) ? 1u : 0u,
      .first_change = uint32_t(changes.size()),
      .biases = 0,
      .penalties = 0};
  if (plan.skip != 0) return plan;
  for (const auto& [token, bias] : params.logit_bias) {
    if (token < vocabulary) changes.push_back({token, bias, 0});
  }
  plan.biases = uint32_t(changes.size()) - plan.first_change;
  for (const SampleParams::Seen& seen : params.seen) {
    if (seen.token < vocabulary) changes.push_back({seen.token, 0, seen.in_answer});
  }
  plan.penalties = uint32_t(changes.size()) - plan.first_change - plan.biases;
  return plan;
}

void read(const SampleOutcome& outcome, SampleResult& result) {
  result = {};
  result.token = outcome.token;
  result.logprob = outcome.logprob;
  for (uint32_t i = 0; i < outcome.top_count; ++i)
    result.top_logprobs.push_back({outcome.top_tokens[i], outcome.top_logprobs[i]});
}

}  // namespace

Sampler::Sampler(uint32_t rows, uint32_t vocabulary)
    : rows_(rows),
      vocabulary_(vocabulary),
      cpu_(scalar_kernels(), 1),
      kept_{DeviceBuffer(size_t(rows) * vocabulary * sizeof(float)),
            DeviceBuffer(size_t(rows) * vocabulary * sizeof(float))},
      changed_(size_t(rows) * vocabulary * sizeof(float)),
      plans_(rows * sizeof(SamplePlan)),
      states_(rows * sizeof(SampleState)),
      parts_(rows * kSampleParts * sizeof(DrawPart)),
      outcomes_(rows * sizeof(SampleOutcome)) {
  CHECK(vocabulary > 0 && vocabulary <= kMostVocabulary);
}

PinnedMemory::Block Sampler::upload(std::span<const SampleParams> params, PinnedMemory& pinned,
                                    cudaStream_t stream) {
  std::vector<LogitChange> changes;
  std::vector<SamplePlan> plans;
  for (const SampleParams& row : params) plans.push_back(plan_of(row, vocabulary_, changes));
  const size_t plan_bytes = plans.size() * sizeof(SamplePlan), bytes = changes.size() * sizeof(LogitChange);
  if (lists_.bytes() < bytes) {
    CUDA_CHECK(cudaStreamSynchronize(stream));
    lists_ = DeviceBuffer(2 * bytes);
  }
  const PinnedMemory::Block block = pinned.take(plan_bytes + bytes);
  std::memcpy(block.get(), plans.data(), plan_bytes);
  if (bytes > 0) std::memcpy(block.get() + plan_bytes, changes.data(), bytes);
  CUDA_CHECK(cudaMemcpyAsync(plans_.data(), block.get(), plan_bytes, cudaMemcpyHostToDevice, stream));
  if (bytes > 0)
    CUDA_CHECK(
        cudaMemcpyAsync(lists_.data(), block.get() + plan_bytes, bytes, cudaMemcpyHostToDevice, stream));
  return block;
}

Sampler::Started Sampler::start(const Rows& logits, std::span<const SampleParams> params,
                                PinnedMemory& pinned, cudaStream_t stream) {
  CHECK(params.size() == logits.rows && params.size() <= rows_ && logits.width == vocabulary_);
  const PinnedMemory::Block uploaded = upload(params, pinned, stream);
  float* const kept = kept_[turn_++ % 2].as<float>();
  launch_sampling({.plans = plans_.as<SamplePlan>(),
                   .changes = lists_.as<LogitChange>(),
                   .logits = logits,
                   .changed = changed_.as<float>(),
                   .states = states_.as<SampleState>(),
                   .parts = parts_.as<DrawPart>(),
                   .outcomes = outcomes(),
                   .kept = kept},
                  stream);
  const size_t bytes = params.size() * sizeof(SampleOutcome);
  const PinnedMemory::Block block = pinned.take(bytes);
  CUDA_CHECK(cudaMemcpyAsync(block.get(), outcomes(), bytes, cudaMemcpyDeviceToHost, stream));
  return {block, uploaded, kept};
}

void Sampler::finish(std::span<const SampleParams> params, const Started& started,
                     std::span<SampleResult> results) {
  rows_left_to_cpu_ = 0;
  const auto* drawn = reinterpret_cast<const SampleOutcome*>(started.outcomes.get());
  std::vector<float> row;
  for (size_t i = 0; i < params.size(); ++i) {
    if (!is_for_cpu(params[i]) && drawn[i].uncertain == 0) {
      read(drawn[i], results[i]);
      continue;
    }
    ++rows_left_to_cpu_;
    row.resize(vocabulary_);
    CUDA_CHECK(cudaMemcpyAsync(row.data(), started.kept + i * row.size(), row.size() * sizeof(float),
                               cudaMemcpyDeviceToHost, copies_.get()));
    copies_.wait();
    SampleParams on_host = params[i];
    on_host.logits = row;
    cpu_.sample({&on_host, 1}, results.subspan(i, 1));
    results[i].amended = true;
  }
}

void Sampler::sample(const Rows& logits, std::span<const SampleParams> params,
                     std::span<SampleResult> results, cudaStream_t stream) {
  CHECK(params.size() == results.size());
  if (params.empty()) return;
  PinnedMemory pinned;
  const Started started = start(logits, params, pinned, stream);
  CUDA_CHECK(cudaStreamSynchronize(stream));
  finish(params, started, results);
}

}  // namespace quire::cuda
