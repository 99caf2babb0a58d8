#include "eval/head_search.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "engine/text_runner.h"
#include "eval/answers_kept.h"
#include "eval/needle_cases.h"

namespace quire {
namespace {

constexpr uint32_t kPromptPart = 256;
constexpr uint32_t kFarBehind = 4;  // answers
constexpr size_t kFewer = 4;        // of facts, every so many is asked
constexpr PruningPolicy kOthers[] = {PruningPolicy::zip, PruningPolicy::snap, PruningPolicy::expected};

const GqaSpec* sees_everything(const LayerSpec& layer) {
  const auto* attention = std::get_if<GqaSpec>(&layer.mixer);
  return attention != nullptr && layer.window() == 0 ? attention : nullptr;
}

// Sums up, head by head, what the last tokens of prompts pay to the fact in them.
class FactShares {
 public:
  FactShares(const LoadedModel& model, const HeadSearch& search, uint32_t tokens)
      : model_(model),
        search_(search),
        runner_(model.engine_model(), KvFormat::f16, tokens + kPromptPart, kPromptPart),
        sums_(model.spec().layers.size()) {
    for (size_t l = 0; l < sums_.size(); ++l) {
      if (const GqaSpec* attention = sees_everything(model.spec().layers[l]))
        sums_[l].resize(attention->heads);
    }
  }

  void add(const NeedleCase& one) {
    const std::vector<TokenId> prompt = user_prompt(model_.text(), one.text() + one.asked.question);
    const auto [begin, end] = fact_of(one, prompt);
    std::vector<float> values;  // [heads, end] of each layer: the window's tokens joined
    size_t rows = 0;
    for (const auto& heads : sums_) rows += heads.size();
    values.resize(rows * end);
    runner_.restart();
    for (size_t done = 0; done < prompt.size(); done += kPromptPart) {
      const auto part = std::span(prompt).subspan(done, std::min<size_t>(kPromptPart, prompt.size() - done));
      values = runner_
                   .compute(part, TextRunner::Wanted::last_row, taps(prompt.size(), done, part.size(), end),
                            std::move(values))
                   .values;
    }
    size_t row = 0;
    for (auto& heads : sums_) {
      for (double& sum : heads) {
        const auto of_head = std::span(values).subspan(row++ * end, end);
        sum = std::accumulate(of_head.begin() + begin, of_head.end(), sum);
      }
    }
    ++prompts_;
  }

  std::vector<LayerHeads> layers() const {
    std::vector<LayerHeads> layers;
    for (uint32_t l = 0; l < sums_.size(); ++l) {
      if (sums_[l].empty()) continue;
      std::vector<uint32_t> heads(sums_[l].size());
      std::iota(heads.begin(), heads.end(), 0u);
      std::ranges::stable_sort(heads, std::greater(), [&](uint32_t head) { return sums_[l][head]; });
      heads.resize(std::max<size_t>(1, heads.size() / 4));
      double share = 0;
      for (const uint32_t head : heads)
        share += sums_[l][head] / (double(heads.size()) * prompts_ * search_.window);
      layers.push_back({.evaluator = {.layer = l, .heads = std::move(heads)},
                        .share = share,
                        .saved = saved_at_half(l, sums_.size())});
    }
    std::ranges::stable_sort(layers, std::greater(), &LayerHeads::share);
    return layers;
  }

 private:
  // Its tokens.
  std::pair<uint32_t, uint32_t> fact_of(const NeedleCase& one, std::span<const TokenId> prompt) const {
    const std::vector<TokenId> without =
        user_prompt(model_.text(), one.before + one.after + one.asked.question);
    const auto begin = std::ranges::mismatch(prompt, without).in1 - prompt.begin();
    const auto tail = std::mismatch(prompt.rbegin(), prompt.rend(), without.rbegin(), without.rend()).first -
                      prompt.rbegin();
    return {uint32_t(begin), uint32_t(std::max<ptrdiff_t>(begin, ptrdiff_t(prompt.size()) - tail))};
  }
  std::vector<Tap> taps(size_t tokens, size_t row, size_t count, uint32_t width) const {
    std::vector<Tap> taps;
    if (width == 0) return taps;
    size_t at = 0;
    for (uint32_t layer = 0; layer < sums_.size(); ++layer) {
      const uint32_t heads = uint32_t(sums_[layer].size());
      for (uint32_t i = 0; heads > 0 && i < count; ++i) {
        if (row + i + search_.window < tokens) continue;
        taps.push_back(
            {.join = Tap::Join::sum, .layer = layer, .token = i, .heads = heads, .width = width, .at = at});
      }
      at += size_t(heads) * width;
    }
    return taps;
  }

  const LoadedModel& model_;
  const HeadSearch& search_;
  TextRunner runner_;
  std::vector<std::vector<double>> sums_;  // by layer, and head of those that see everything
  uint32_t prompts_ = 0;
};

PruningWay way(const PruningOptions& how) {
  return {.pruning = how};
}

std::vector<PruningWay> ways_of(const EvaluatorHeads& heads, uint32_t window) {
  std::vector<PruningWay> ways;
  for (const double share : kTriedShares)
    ways.push_back(
        way({.policy = PruningPolicy::evaluator, .share = share, .window = window, .evaluator = heads}));
  return ways;
}

// Asks the facts that the layers are tried with.
class Tries {
 public:
  Tries(const LoadedModel& model, uint32_t window, uint32_t tokens, std::span<LayerHeads> layers, size_t all)
      : answers_(model, KvFormat::f16, tokens), window_(window), layers_(layers), all_(all) {
    for (LayerHeads& layer : layers_) layer.kept.emplace();
  }

  // Whether the whole cache gives the answer; if so, which layers do from less of it.
  bool ask(const NeedleCase& one) {
    std::vector<PruningWay> ways(1);
    std::vector<LayerHeads*> asked;
    for (LayerHeads& layer : layers_) {
      if (is_out(layer)) continue;
      asked.push_back(&layer);
      std::ranges::move(ways_of(layer.evaluator, window_), std::back_inserter(ways));
    }
    const std::vector<bool> right = answers_.ask(one, ways);
    auto next = right.begin();
    if (!*next++) return false;
    for (LayerHeads* layer : asked) {
      ++layer->kept->asked;
      for (uint32_t& count : layer->kept->whole) count += *next++ ? 1 : 0;
    }
    return true;
  }

  // The same of a prompt that is pruned before it is computed, by one layer, at half.
  void ask_before(const NeedleCase& one, LayerHeads& layer) {
    auto& before = layer.kept->before;
    if (!before) before.emplace();
    ++before->asked;
    const std::vector<PruningWay> half = {way({.policy = PruningPolicy::evaluator_prompt,
                                               .share = kTriedShares[kHalf],
                                               .window = window_,
                                               .evaluator = layer.evaluator})};
    before->kept += answers_.ask(one, half).front() ? 1 : 0;
  }

  uint32_t kept_by(PruningPolicy policy, std::span<const NeedleCase* const> known) {
    const std::vector<PruningWay> half = {
        way({.policy = policy, .share = kTriedShares[kHalf], .window = usual_window(policy)})};
    uint32_t kept = 0;
    for (const NeedleCase* one : known) kept += answers_.ask(*one, half).front() ? 1 : 0;
    return kept;
  }

 private:
  // It cannot keep enough any more, and another one that is still asked is far ahead of it.
  bool is_out(const LayerHeads& layer) const {
    const auto lost = [](const LayerHeads& one) { return one.kept->asked - one.kept->whole[kHalf]; };
    uint32_t most_asked = 0, least_lost = UINT32_MAX;
    for (const LayerHeads& one : layers_) most_asked = std::max(most_asked, one.kept->asked);
    for (const LayerHeads& one : layers_) {
      if (one.kept->asked == most_asked) least_lost = std::min(least_lost, lost(one));
    }
    if (layer.kept->asked < most_asked) return true;  // it was before
    return lost(layer) > (1 - kEnoughAnswers) * double(all_) && lost(layer) >= least_lost + kFarBehind;
  }

  AnswersKept answers_;
  const uint32_t window_;
  const std::span<LayerHeads> layers_;
  const size_t all_;
};

void choose(FoundHeads& found, size_t tried) {
  found.best = found.layers.front().evaluator;
  if (!found.could_be_tried()) return;
  const auto rank = [&](const LayerHeads& layer) {
    if (!found.is_enough(layer)) return 0;
    const auto& before = layer.kept->before;
    return before && before->kept >= kEnoughAnswers * before->asked ? 2 : 1;
  };
  const auto kept = [](const LayerHeads& layer) { return layer.kept->whole[kHalf]; };
  const LayerHeads* best = &found.layers.front();
  for (const LayerHeads& layer : std::span(found.layers).first(tried)) {
    const bool better = rank(layer) != rank(*best) ? rank(layer) > rank(*best)
                        : rank(layer) > 0          ? layer.evaluator.layer < best->evaluator.layer
                                                   : kept(layer) > kept(*best);
    if (better) best = &layer;
  }
  found.best = best->evaluator;
}

}  // namespace

double saved_at_half(uint32_t layer, size_t layers) {
  // The pass computes all tokens up to the layer, and then half of them are computed in every layer.
  return 0.5 - double(layer + 1) / double(layers);
}

FoundHeads find_evaluator_heads(const LoadedModel& model, const HouseData& data, const HeadSearch& search,
                                const std::function<void(size_t done, size_t of)>& progress) {
  const uint32_t tokens = std::min(search.tokens, model.spec().context / 4 * 3);
  if (std::ranges::none_of(model.spec().layers, sees_everything))
    throw Error(
        "no layer of this model sees the whole prompt with heads of keys and values: none can judge it");
  const NeedleSplit cases = split_needle_cases(model.text(), data, search.prompts, search.cases, tokens);
  if (cases.first.empty() || cases.second.empty())
    throw Error("a context of {} tokens has no room for prompts that hide a fact: its heads cannot be found",
                model.spec().context);
  const size_t work = cases.first.size() + 3 * cases.second.size();  // a case is asked in many ways
  FoundHeads found{.tokens = tokens, .prompts = uint32_t(cases.first.size()), .window = search.window};
  size_t done = 0;
  const auto tell = [&](size_t more) {
    done = std::min(done + more, work);
    if (progress) progress(done, work);
  };
  {
    FactShares facts(model, search, tokens);
    for (const NeedleCase& one : cases.first) {
      facts.add(one);
      tell(1);
    }
    found.layers = facts.layers();
  }
  const size_t tried = std::min<size_t>(search.layers, found.layers.size());
  const std::span<LayerHeads> layers = std::span(found.layers).first(tried);
  Tries tries(model, search.window, tokens, layers, cases.second.size());
  std::vector<const NeedleCase*> known;
  for (const NeedleCase& one : cases.second) {
    ++found.asked;
    if (tries.ask(one)) known.push_back(&one);
    tell(2);
  }
  found.answered = uint32_t(known.size());
  std::vector<LayerHeads*> enough;
  for (LayerHeads& layer : layers) {
    if (found.is_enough(layer)) enough.push_back(&layer);
  }
  // Of one layer alone it decides nothing: a few of them say what there is to know.
  const size_t step = enough.size() > 1 ? 1 : kFewer;
  for (size_t i = 0; found.could_be_tried() && i < known.size(); ++i) {
    for (LayerHeads* layer : enough) {
      if (i % step == 0) tries.ask_before(*known[i], *layer);
    }
    tell(1);
  }
  choose(found, tried);
  if (!found.could_be_tried() || found.is_enough(found.chosen())) return found;
  for (const PruningPolicy policy : kOthers) {
    FoundHeads::Other other{.policy = policy};
    try {
      other.kept = tries.kept_by(policy, known);
    } catch (const Error&) {
      continue;  // the device, or the context, cannot have it
    }
    if (!found.other || other.kept > found.other->kept) found.other = other;
    if (found.is_enough(found.other->kept)) break;
  }
  return found;
}

}  // namespace quire
