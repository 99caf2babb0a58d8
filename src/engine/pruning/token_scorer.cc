#include "engine/pruning/token_scorer.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "base/error.h"
#include "engine/pruning/evaluator_scorer.h"
#include "engine/pruning/expected_scorer.h"
#include "engine/pruning/head_budgets.h"
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
  void ask(const Seen&, std::vector<Tap>&) const override {}

 protected:
  std::vector<float> scores(size_t, uint32_t) const override {
    std::vector<float> scores(tokens_);
    std::iota(scores.begin(), scores.end(), 0.0f);
    std::fill_n(scores.begin(), std::min(kSinks, tokens_), std::numeric_limits<float>::infinity());
    return scores;
  }
};

}  // namespace

TokenScorer::TokenScorer(const PruningOptions& options, const ModelSpec& spec, const KvLayout& layout,
                         uint32_t tokens)
    : options_(options), spec_(spec), layout_(layout), tokens_(tokens) {
  for (uint32_t l = 0; l < layout.places.size(); ++l) {
    if (keeps_rows(l) && layout.groups[layout.places[l].front().group].window == 0) full_layers_.push_back(l);
  }
}

const std::vector<float>& TokenScorer::values() {
  if (values_.empty()) values_.resize(value_count());
  return values_;
}

bool TokenScorer::keeps_rows(size_t layer) const {
  return !layout_.places[layer].empty() && !shape(layer).state;
}

const KvLayerShape& TokenScorer::shape(size_t layer) const {
  return layout_.at(layout_.places[layer].front()).shape;
}

size_t TokenScorer::begin_of(size_t layer) const {
  size_t begin = 0;
  for (const uint32_t before : full_layers_) {
    if (before < layer) begin += size_t(shape(before).kv_heads) * tokens_;
  }
  return begin;
}

size_t TokenScorer::values_of_all_heads() const {
  return begin_of(layout_.places.size());
}

void TokenScorer::ask_by_kv_head(const Seen& token, Tap::Join join, std::vector<Tap>& taps) const {
  for (const uint32_t layer : full_layers_) {
    taps.push_back({.join = join,
                    .layer = layer,
                    .token = token.place,
                    .heads = heads(layer),
                    .heads_per_row = heads(layer) / shape(layer).kv_heads,
                    .width = tokens_,
                    .at = token.at + begin_of(layer)});
  }
}

KeptRows TokenScorer::choose() const {
  KeptRows kept{.count = this->kept(), .of_head = {}};
  CHECK(kept.count < tokens_ && kept.count > options_.window);
  const uint32_t before = tokens_ - options_.window;
  std::vector<std::vector<float>> scores;  // of heads that see everything, up to the window
  std::vector<size_t> heads;               // their places in kept.of_head
  uint32_t page_tokens = 1;                // heads may differ by so many rows
  for (size_t l = 0; l < layout_.places.size(); ++l) {
    if (!keeps_rows(l)) continue;
    const KvGroupLayout& group = layout_.groups[layout_.places[l].front().group];
    for (uint32_t h = 0; h < shape(l).kv_heads; ++h) {
      kept.of_head.emplace_back();
      if (group.window > 0) continue;
      heads.push_back(kept.of_head.size() - 1);
      scores.push_back(this->scores(l, h));
      scores.back().resize(before);
    }
    if (!group.keeps_all()) continue;
    page_tokens = std::lcm(page_tokens, group.page_tokens);
  }
  const uint32_t each = kept.count - options_.window;
  const std::vector<uint32_t> budgets = makes_heads_unequal(options_.policy, layout_)
                                            ? split_budget(scores, each, page_tokens)
                                            : std::vector<uint32_t>(scores.size(), each);
  for (size_t i = 0; i < heads.size(); ++i) {
    std::vector<uint32_t>& rows = kept.of_head[heads[i]];
    rows = best_of(scores[i], budgets[i]);
    for (uint32_t row = before; row < tokens_; ++row) rows.push_back(row);
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

bool makes_heads_unequal(PruningPolicy policy, const KvLayout& layout) {
  if (policy == PruningPolicy::streaming || asks_evaluator(policy)) return false;
  const auto sees_all = [](const KvGroupLayout& group) { return group.keeps_all(); };
  // Cells of one group cannot hold rows of another's heads.
  if (std::ranges::count_if(layout.groups, sees_all) != 1) return false;
  return std::ranges::find_if(layout.groups, sees_all)->has_equal_cells();
}

void check_heads(PruningPolicy policy, const KvLayout& layout, const BackendTraits& backend) {
  if (backend.limits.unequal_heads || !makes_heads_unequal(policy, layout)) return;
  throw Error(
      "the policy {} lets heads keep unequal numbers of rows, and the kernels of {} want them equal; prune "
      "with evaluator, evaluator-prompt or streaming, or use --device cpu",
      name(policy), backend.device);
}

std::unique_ptr<TokenScorer> make_scorer(const PruningOptions& options, const ModelSpec& spec,
                                         const KvLayout& layout, uint32_t tokens,
                                         std::span<const TokenId> repeat_request) {
  switch (options.policy) {
    case PruningPolicy::streaming:
      return std::make_unique<StreamingScorer>(options, spec, layout, tokens);
    case PruningPolicy::snap:
      return std::make_unique<SnapScorer>(options, spec, layout, tokens);
    case PruningPolicy::zip:
      return std::make_unique<ZipScorer>(options, spec, layout, tokens, repeat_request);
    case PruningPolicy::expected:
      return std::make_unique<ExpectedScorer>(options, spec, layout, tokens);
    case PruningPolicy::evaluator_prompt:
      return std::make_unique<EvaluatorPromptScorer>(options, spec, layout, tokens);
    case PruningPolicy::evaluator:
      break;
  }
  return std::make_unique<EvaluatorScorer>(options, spec, layout, tokens);
}

}  // namespace quire
