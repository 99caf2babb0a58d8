#include "engine/pruning/token_scorer.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "engine/pruning/evaluator_scorer.h"
#include "engine/pruning/snap_scorer.h"
#include "engine/pruning/zip_scorer.h"

namespace quire {
namespace {

// Tokens that are no content draw attention because they are the first; without them all is lost.
constexpr uint32_t kSinks = 4;

class StreamingScorer : public TokenScorer {
 public:
  using TokenScorer::TokenScorer;

  uint32_t observed_tokens() const override { return 0; }
  void see(Backend&, size_t, const AttendParams&, uint32_t, uint32_t) override {}
  void restart() override {}

 protected:
  std::vector<float> scores(size_t, uint32_t) const override {
    std::vector<float> scores(tokens_);
    std::iota(scores.begin(), scores.end(), 0.0f);
    std::fill_n(scores.begin(), std::min(kSinks, tokens_), std::numeric_limits<float>::infinity());
    return scores;
  }
};

// The places of the `count` largest, of equals the earlier ones, ascending.
std::vector<uint32_t> best_of(std::span<const float> scores, uint32_t count) {
  std::vector<uint32_t> places(scores.size());
  std::iota(places.begin(), places.end(), 0u);
  const auto better = [&](uint32_t a, uint32_t b) {
    return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
  };
  std::nth_element(places.begin(), places.begin() + count, places.end(), better);
  places.resize(count);
  std::ranges::sort(places);
  return places;
}

}  // namespace

TokenScorer::TokenScorer(const PruningOptions& options, const KvLayout& layout, uint32_t tokens)
    : options_(options), layout_(layout), tokens_(tokens) {}

KeptRows TokenScorer::choose() const {
  KeptRows kept{.count = this->kept(), .of_head = {}};
  CHECK(kept.count < tokens_ && kept.count > options_.window);
  const uint32_t before = tokens_ - options_.window;
  for (size_t l = 0; l < layout_.places.size(); ++l) {
    const KvLayout::Place place = layout_.places[l];
    const KvLayerShape& shape = layout_.groups[place.group].layers[place.slot].shape;
    for (uint32_t h = 0; h < shape.kv_heads; ++h) {
      std::vector<uint32_t>& rows = kept.of_head.emplace_back();
      if (shape.window > 0) continue;
      const std::vector<float> scores = this->scores(l, h);
      rows = best_of(std::span(scores).first(before), kept.count - options_.window);
      for (uint32_t row = before; row < tokens_; ++row) rows.push_back(row);
    }
  }
  return kept;
}

std::vector<uint32_t> TokenScorer::choose_tokens() const {
  const uint32_t before = tokens_ - options_.window;
  const std::vector<float> scores = this->scores(0, 0);
  std::vector<uint32_t> tokens = best_of(std::span(scores).first(before), kept() - options_.window);
  for (uint32_t token = before; token < tokens_; ++token) tokens.push_back(token);
  return tokens;
}

std::unique_ptr<TokenScorer> make_scorer(const PruningOptions& options, const ModelSpec& spec,
                                         const KvLayout& layout, uint32_t tokens) {
  switch (options.policy) {
    case PruningPolicy::streaming:
      return std::make_unique<StreamingScorer>(options, layout, tokens);
    case PruningPolicy::snap:
      return std::make_unique<SnapScorer>(options, layout, tokens);
    case PruningPolicy::zip:
      return std::make_unique<ZipScorer>(options, layout, tokens, uint32_t(spec.layers.size()));
    case PruningPolicy::evaluator:
      break;
  }
  return std::make_unique<EvaluatorScorer>(options, layout, tokens);
}

}  // namespace quire
