#include "eval/evaluator_heads.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/json.h"
#include "engine/text_runner.h"
#include "eval/needle_cases.h"

namespace quire {
namespace {

// Sums up, head by head, what the last tokens of a prompt pay to some of its tokens.
class FactShares {
 public:
  // `heads`: the most that a layer has. The spec must outlive it.
  FactShares(const ModelSpec& spec, size_t layers, uint32_t heads, uint32_t window)
      : spec_(spec), heads_(heads), window_(window), sums_(layers * heads) {}

  void begin(uint32_t tokens, uint32_t fact_begin, uint32_t fact_end) {
    tokens_ = tokens;
    fact_begin_ = fact_begin;
    fact_end_ = fact_end;
  }
  // Of so many tokens from `row` on.
  std::vector<Tap> taps(uint32_t row, uint32_t count) const {
    std::vector<Tap> taps;
    for (uint32_t layer = 0; layer < sums_.size() / heads_; ++layer) {
      for (uint32_t i = 0; i < count; ++i) {
        if (row + i + window_ < tokens_ || fact_end_ == 0) continue;
        taps.push_back({.layer = layer,
                        .token = i,
                        .heads = spec_.layers[layer].gqa().heads,
                        .width = fact_end_,
                        .at = taps.size() * heads_ * fact_end_});
      }
    }
    return taps;
  }
  void add(std::span<const Tap> taps, std::span<const float> values) {
    for (const Tap& tap : taps) {
      for (uint32_t h = 0; h < tap.heads; ++h) {
        for (uint32_t at = fact_begin_; at < fact_end_; ++at)
          sums_[tap.layer * heads_ + h] += double(values[tap.at + size_t(h) * fact_end_ + at]);
      }
    }
  }

  double sum(size_t layer, uint32_t head) const { return sums_[layer * heads_ + head]; }

 private:
  const ModelSpec& spec_;
  const uint32_t heads_, window_;
  std::vector<double> sums_;
  uint32_t tokens_ = 0, fact_begin_ = 0, fact_end_ = 0;
};

// The layer whose best heads look at facts most, and those heads: a quarter of all.
EvaluatorHeads best_layer(std::span<const HeadShare> sorted, uint32_t heads, size_t layers) {
  const uint32_t wanted = std::max(1u, heads / 4);
  EvaluatorHeads best;
  double best_share = -1;
  for (uint32_t layer = 0; layer < layers; ++layer) {
    EvaluatorHeads candidate{.layer = layer, .heads = {}};
    double share = 0;
    for (const HeadShare& head : sorted) {
      if (head.layer != layer || candidate.heads.size() == wanted) continue;
      candidate.heads.push_back(head.head);
      share += head.share;
    }
    if (!candidate.heads.empty() && share > best_share) {
      best = candidate;
      best_share = share;
    }
  }
  return best;
}

}  // namespace

FoundHeads find_evaluator_heads(const LoadedModel& model, const HouseData& data, const HeadSearch& search,
                                const std::function<void(size_t)>& progress) {
  const ModelSpec& spec = model.spec();
  const size_t layers =
      std::min(spec.layers.size(), size_t(std::ceil(search.layers * double(spec.layers.size()))));
  constexpr uint32_t kChunk = 256;
  TextRunner runner(model.engine_model(), KvFormat::f16, search.tokens + kChunk, kChunk);
  uint32_t most_heads = 0;
  for (const LayerSpec& layer : spec.layers) most_heads = std::max(most_heads, layer.gqa().heads);
  FactShares facts(spec, layers, most_heads, search.window);
  const std::vector<NeedleCase> cases = needle_cases(model.text(), data, search.prompts, search.tokens);
  for (size_t k = 0; k < cases.size(); ++k) {
    const NeedleCase& one = cases[k];
    const std::vector<TokenId> prompt = user_prompt(model.text(), one.text() + one.asked.question);
    const std::vector<TokenId> without =
        user_prompt(model.text(), one.before + one.after + one.asked.question);
    const auto begin = std::ranges::mismatch(prompt, without).in1 - prompt.begin();
    const auto tail = std::mismatch(prompt.rbegin(), prompt.rend(), without.rbegin(), without.rend()).first -
                      prompt.rbegin();
    facts.begin(uint32_t(prompt.size()), uint32_t(begin),
                uint32_t(std::max<ptrdiff_t>(begin, ptrdiff_t(prompt.size()) - tail)));
    runner.restart();
    for (size_t done = 0; done < prompt.size(); done += kChunk) {
      const auto part = std::span(prompt).subspan(done, std::min<size_t>(kChunk, prompt.size() - done));
      const std::vector<Tap> taps = facts.taps(uint32_t(done), uint32_t(part.size()));
      const size_t values = taps.empty() ? 0 : taps.back().at + size_t(most_heads) * taps.back().width;
      facts.add(taps,
                runner.compute(part, TextRunner::Wanted::last_row, taps, std::vector<float>(values)).values);
    }
    if (progress) progress(k + 1);
  }
  FoundHeads found;
  for (uint32_t l = 0; l < layers; ++l) {
    if (spec.layers[l].window() > 0) continue;
    for (uint32_t h = 0; h < spec.layers[l].gqa().heads; ++h)
      found.heads.push_back({l, h, facts.sum(l, h) / double(cases.size() * search.window)});
  }
  if (found.heads.empty())
    throw Error("none of the first {} layers sees the whole prompt: look at more of them with --layers",
                layers);
  std::ranges::stable_sort(found.heads, std::greater(), &HeadShare::share);
  found.best = best_layer(found.heads, most_heads, layers);
  return found;
}

std::string evaluator_heads_path(const std::string& model_path) {
  if (std::filesystem::is_directory(model_path))
    return (std::filesystem::path(model_path) / "kv-heads.json").string();
  return model_path + ".kv-heads.json";
}

void write_evaluator_heads(const std::string& path, const FoundHeads& found, const HeadSearch& search) {
  double share = 0;
  for (const HeadShare& head : found.heads) {
    if (head.layer == found.best.layer && std::ranges::count(found.best.heads, head.head) > 0)
      share += head.share;
  }
  const OrderedJson object = {{"layer", found.best.layer},
                              {"heads", found.best.heads},
                              {"share_on_the_fact", share / double(found.best.heads.size())},
                              {"prompts", search.prompts},
                              {"tokens", search.tokens}};
  std::ofstream file(path);
  file << object.dump(2) << "\n";
  if (!file.flush()) throw Error("cannot write {}", path);
}

EvaluatorHeads read_evaluator_heads(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error))
    throw Error("there is no {}: \"quire kv-heads\" finds the model's evaluator heads and writes it", path);
  const Json object = read_json_file(path, 1 << 20);
  EvaluatorHeads heads;
  const bool fits =
      object.is_object() && object.contains("layer") && object["layer"].is_number_unsigned() &&
      object.contains("heads") && object["heads"].is_array() && !object["heads"].empty() &&
      std::ranges::all_of(object["heads"], [](const Json& h) { return h.is_number_unsigned(); });
  if (!fits)
    throw Error("{} does not say which heads of which layer: \"quire kv-heads\" writes it anew", path);
  heads.layer = uint32_t(std::min<uint64_t>(object["layer"].get<uint64_t>(), UINT32_MAX));
  for (const Json& head : object["heads"])
    heads.heads.push_back(uint32_t(std::min<uint64_t>(head.get<uint64_t>(), UINT32_MAX)));
  return heads;
}

}  // namespace quire
