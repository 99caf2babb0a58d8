#include "engine/pruning/expected_scorer.h"

#include <algorithm>
#include <cmath>
#include <utility>

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
    : TokenScorer(options, spec, layout, tokens) {
  for (const RopeSpec& rope : spec.ropes) {
    std::vector<Rotation>& rotations = ahead_.emplace_back();
    for (const float frequency : rope.inverse_frequencies) {
      Rotation mean{0, 0};
      for (uint32_t i = 0; i < kPositions; ++i) {
        const double angle = double(tokens + i) * double(frequency);
        mean.cos += std::cos(angle) / kPositions;
        mean.sin += std::sin(angle) / kPositions;
      }
      rotations.push_back(mean);
    }
  }
}

void ExpectedScorer::restart() {
  TokenScorer::restart();
  worth_.clear();
}

void ExpectedScorer::move_ahead(std::span<float> query, size_t layer, uint32_t position) const {
  const std::optional<uint32_t> own = spec_.layers[layer].gqa().rope;
  if (!own) return;
  const RopeSpec& rope = spec_.ropes[*own];
  const std::vector<Rotation>& ahead = ahead_[*own];
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

size_t ExpectedScorer::value_count() const {
  size_t count = 0;
  for (const uint32_t layer : full_layers()) count += samples() * sample_width(layer);
  return count;
}

void ExpectedScorer::ask(const Seen& token, std::vector<Tap>& taps) const {
  size_t at = token.at;
  const uint32_t sample = token.row - (tokens_ - samples());
  for (const uint32_t layer : full_layers()) {
    taps.push_back({.what = Tap::What::queries,
                    .layer = layer,
                    .token = token.place,
                    .heads = heads(layer),
                    .width = shape(layer).query_dim(),
                    .at = at + sample * sample_width(layer)});
    at += samples() * sample_width(layer);
  }
}

std::optional<ScoringPass> ExpectedScorer::pass(uint32_t index, std::span<const TokenId>) const {
  if (index > 0) return std::nullopt;
  return ScoringPass{.tokens = {}, .row = tokens_};
}

std::vector<Expectation> ExpectedScorer::places(size_t& count) const {
  std::vector<Expectation> places;
  count = value_count();
  size_t samples_at = 0;
  for (const uint32_t layer : full_layers()) {
    Expectation& one = places.emplace_back();
    one.layer = layer;
    one.rows = tokens_;
    one.samples = samples();
    one.samples_at = std::exchange(samples_at, samples_at + samples() * sample_width(layer));
    one.scores_at = std::exchange(count, count + size_t(heads(layer)) * tokens_);
    one.norms_at = std::exchange(count, count + size_t(shape(layer).kv_heads) * tokens_);
  }
  return places;
}

std::vector<Expectation> ExpectedScorer::expectations(std::vector<float>& values) const {
  size_t count = 0;
  std::vector<Expectation> expectations = places(count);
  values = values_;
  for (const Expectation& one : expectations) {
    const uint32_t dim = shape(one.layer).query_dim();
    for (uint32_t i = 0; i < one.samples * heads(one.layer); ++i)
      move_ahead(std::span(values).subspan(one.samples_at + i * dim, dim), one.layer,
                 tokens_ - one.samples + i / heads(one.layer));
  }
  values.resize(count);
  return expectations;
}

void ExpectedScorer::take(std::span<const float> values) {
  if (values.size() == value_count()) return TokenScorer::take(values);
  size_t count = 0;
  worth_.resize(layout_.places.size());
  for (const Expectation& one : places(count)) worth_[one.layer] = judged(one.layer, one, values);
  values_ = {};
}

std::vector<float> ExpectedScorer::judged(size_t layer, const Expectation& expected,
                                          std::span<const float> values) const {
  const float* scores = &values[expected.scores_at];
  const float* norms = &values[expected.norms_at];
  std::vector<float> worth(size_t(shape(layer).kv_heads) * tokens_);
  const uint32_t group = heads(layer) / shape(layer).kv_heads;
  std::vector<double> shares(tokens_);
  for (uint32_t h = 0; h < heads(layer); ++h) {
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
  return worth;
}

std::vector<float> ExpectedScorer::scores(size_t layer, uint32_t head) const {
  CHECK(!worth_[layer].empty());
  const float* worth = worth_[layer].data() + size_t(head) * tokens_;
  return {worth, worth + tokens_};
}

}  // namespace quire
