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

void choose(FoundHeads& found, size_t tried) {
  found.best = found.layers.front().evaluator;
  if (!found.could_be_tried()) return;
  const auto rank = [&](const LayerHeads& layer) {
    const bool whole = found.is_enough(layer.kept->whole[kHalf]);
    return whole && layer.kept->before && found.is_enough(*layer.kept->before) ? 2 : whole ? 1 : 0;
  };
  const LayerHeads* best = &found.layers.front();
  for (const LayerHeads& layer : std::span(found.layers).first(tried)) {
    const bool better = rank(layer) != rank(*best) ? rank(layer) > rank(*best)
                        : rank(layer) > 0          ? layer.evaluator.layer < best->evaluator.layer
                                                   : layer.kept->whole[kHalf] > best->kept->whole[kHalf];
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
  std::vector<PruningWay> ways;
  for (LayerHeads& layer : std::span(found.layers).first(tried)) {
    layer.kept.emplace();
    std::ranges::move(ways_of(layer.evaluator, search.window), std::back_inserter(ways));
  }
  AnswersKept answers(model, KvFormat::f16, tokens);
  // A layer that has lost too many answers of all there may be is not worth another prefill.
  const auto try_before = [&](std::span<LayerHeads> layers, uint32_t asked, size_t all,
                              const NeedleCase& one) {
    std::vector<PruningWay> before;
    for (LayerHeads& layer : layers) {
      if (asked - layer.kept->whole[kHalf] > (1 - kEnoughAnswers) * double(all)) layer.kept->before.reset();
      if (layer.kept->before)
        before.push_back(way({.policy = PruningPolicy::evaluator_prompt,
                              .share = kTriedShares[kHalf],
                              .window = search.window,
                              .evaluator = layer.evaluator}));
    }
    const std::vector<bool> right = before.empty() ? std::vector<bool>() : answers.ask(one, before);
    auto next = right.begin();
    for (LayerHeads& layer : layers) {
      if (layer.kept->before) *layer.kept->before += *next++ ? 1 : 0;
    }
  };
  std::vector<const NeedleCase*> known;
  for (const NeedleCase& one : cases.second) {
    ++found.asked;
    if (answers.ask(one)) {
      known.push_back(&one);
      const std::vector<bool> right = answers.ask(one, ways);
      auto next = right.begin();
      for (LayerHeads& layer : std::span(found.layers).first(tried)) {
        for (uint32_t& count : layer.kept->whole) count += *next++ ? 1 : 0;
      }
      try_before(std::span(found.layers).first(tried), uint32_t(known.size()), cases.second.size(), one);
    }
    tell(3);
  }
  found.answered = uint32_t(known.size());
  choose(found, tried);
  if (!found.could_be_tried() || found.is_enough(found.chosen().kept->whole[kHalf])) return found;
  for (const PruningPolicy policy : kOthers) {
    FoundHeads::Other other{.policy = policy};
    const std::vector<PruningWay> half = {
        way({.policy = policy, .share = kTriedShares[kHalf], .window = usual_window(policy)})};
    try {
      for (const NeedleCase* one : known) other.kept += answers.ask(*one, half).front() ? 1 : 0;
    } catch (const Error&) {
      continue;  // the device, or the context, cannot have it
    }
    if (!found.other || other.kept > found.other->kept) found.other = other;
    if (found.is_enough(found.other->kept)) break;
  }
  return found;
}

}  // namespace quire
