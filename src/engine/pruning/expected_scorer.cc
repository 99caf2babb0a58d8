#include "engine/pruning/expected_scorer.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace quire {
namespace {

// Scores become shares of their sum.
void softmax(std::span<double> scores) {
  const double max = *std::ranges::max_element(scores);
  double sum = 0;
  for (double& score : scores) sum += score = std::exp(score - max);
  for (double& score : scores) score /= sum;
}

}  // namespace

ExpectedScorer::ExpectedScorer(const PruningOptions& options, const ModelSpec& spec, const KvLayout& layout,
                               uint32_t tokens)
    : TokenScorer(options, layout, tokens), spec_(spec) {
  for (const RopeSpec& rope : spec.ropes) {
    std::vector<Turn>& turns = ahead_.emplace_back();
    for (const float frequency : rope.inverse_frequencies) {
      Turn mean{0, 0};
      for (uint32_t i = 0; i < kPositions; ++i) {
        const double angle = double(tokens + i) * double(frequency);
        mean.cos += std::cos(angle) / kPositions;
        mean.sin += std::sin(angle) / kPositions;
      }
      turns.push_back(mean);
    }
  }
}

void ExpectedScorer::restart() {
  samples_.clear();
  worth_.clear();
}

void ExpectedScorer::move_ahead(std::span<float> query, size_t layer, uint32_t position) const {
  const std::optional<uint32_t> own = spec_.layers[layer].gqa().rope;
  if (!own) return;
  const RopeSpec& rope = spec_.ropes[*own];
  const std::vector<Turn>& ahead = ahead_[*own];
  const bool interleaved = rope.pairing == RopePairing::interleaved;
  const size_t step = interleaved ? 2 : 1, partner = interleaved ? 1 : ahead.size();
  for (size_t i = 0; i < ahead.size(); ++i) {
    // Back to where no position is, and ahead from there. A scale of the rotation stays, as keys have it.
    const double angle = double(position) * double(rope.inverse_frequencies[i]);
    const double back_cos = std::cos(angle), back_sin = -std::sin(angle);
    const double cos = ahead[i].cos * back_cos - ahead[i].sin * back_sin;
    const double sin = ahead[i].sin * back_cos + ahead[i].cos * back_sin;
    float& a = query[i * step];
    float& b = query[i * step + partner];
    const double x = double(a), y = double(b);
    a = float(x * cos - y * sin);
    b = float(x * sin + y * cos);
  }
}

void ExpectedScorer::see(Backend& backend, size_t layer, const AttendParams& params, uint32_t token,
                         uint32_t position) {
  const uint32_t dim = params.kv.layer->shape.key_dim;
  samples_.resize(layout_.places.size());
  std::vector<float>& samples = samples_[layer];
  const size_t begin = samples.size(), width = size_t(params.heads) * dim;
  samples.resize(begin + width);
  backend.read_queries({.query = params.query,
                        .heads = params.heads,
                        .kv = params.kv,
                        .token = token,
                        .out = {&samples[begin], params.heads, dim, dim}});
  for (size_t h = 0; h < params.heads; ++h)
    move_ahead(std::span(samples).subspan(begin + h * dim, dim), layer, position);
  if (position + 1 == tokens_) judge(backend, layer, params, token);
}

void ExpectedScorer::judge(Backend& backend, size_t layer, const AttendParams& params, uint32_t token) {
  const KvLayerShape& shape = params.kv.layer->shape;
  const size_t width = size_t(params.heads) * shape.key_dim;
  std::vector<float>& samples = samples_[layer];
  std::vector<float> scores(size_t(params.heads) * tokens_), norms(size_t(shape.kv_heads) * tokens_);
  backend.expected_scores({.samples = {samples.data(), samples.size() / width, width, width},
                           .heads = params.heads,
                           .kv = params.kv,
                           .scale = params.scale,
                           .token = token,
                           .scores = {scores.data(), params.heads, tokens_, tokens_},
                           .value_norms = {norms.data(), shape.kv_heads, tokens_, tokens_}});
  samples = {};
  worth_.resize(layout_.places.size());
  std::vector<float>& worth = worth_[layer];
  worth.resize(size_t(shape.kv_heads) * tokens_);
  const uint32_t group = params.heads / shape.kv_heads;
  std::vector<double> shares(tokens_);
  for (uint32_t h = 0; h < params.heads; ++h) {
    const size_t row = size_t(h / group) * tokens_;
    std::copy_n(&scores[size_t(h) * tokens_], tokens_, shares.begin());
    softmax(shares);
    for (uint32_t i = 0; i < tokens_; ++i)
      worth[row + i] += float((shares[i] + kLeastShare) * double(norms[row + i]) / group);
  }
  // A model whose numbers overflow must not spoil the order of the rest.
  for (float& value : worth) {
    if (!std::isfinite(value)) value = 0;
  }
}

std::vector<float> ExpectedScorer::scores(size_t layer, uint32_t head) const {
  CHECK(!worth_[layer].empty());
  const float* worth = worth_[layer].data() + size_t(head) * tokens_;
  return {worth, worth + tokens_};
}

}  // namespace quire
