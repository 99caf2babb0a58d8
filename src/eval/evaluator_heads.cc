#include "eval/evaluator_heads.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/check.h"
#include "base/error.h"
#include "eval/model_json.h"

namespace quire {
namespace {

const ModelJson kHeadsFile{"quire kv-heads 2", "which heads of which layer", "quire kv-heads"};

std::string share_name(double share) {
  return fmt::format("{:.0f}%", 100 * share);
}

Json json_of(const LayerHeads& layer) {
  Json object = {{"layer", layer.evaluator.layer},
                 {"heads", layer.evaluator.heads},
                 {"share_on_the_fact", layer.share},
                 {"prefill_saved_at_half", layer.saved}};
  if (!layer.kept) return object;
  object["asked"] = layer.kept->asked;
  for (size_t i = 0; i < kTriedShares.size(); ++i)
    object["evaluator"][share_name(kTriedShares[i])] = layer.kept->whole[i];
  if (layer.kept->before) {
    object["evaluator-prompt"] = {{"asked", layer.kept->before->asked},
                                  {share_name(kTriedShares[kHalf]), layer.kept->before->kept}};
  }
  return object;
}

EvaluatorHeads heads_of(const Json& object, const ModelSpec& spec) {
  EvaluatorHeads heads{.layer = whole_number(object, "layer"), .heads = {}};
  const Json& list = object.at("heads");
  if (!list.is_array() || list.empty()) throw Error("it names no heads");
  for (const Json& head : list) heads.heads.push_back(whole_number({{"head", head}}, "head"));
  if (heads.layer >= spec.layers.size() || spec.layers[heads.layer].window() > 0 ||
      std::ranges::max(heads.heads) >= spec.layers[heads.layer].gqa().heads)
    throw Error("layer {} of this model has no such heads that see everything", heads.layer);
  return heads;
}

// `answered`: of files that do not say how many a layer was asked: all.
LayerHeads layer_of(const Json& object, const ModelSpec& spec, uint32_t answered) {
  LayerHeads layer{.evaluator = heads_of(object, spec),
                   .share = object.at("share_on_the_fact"),
                   .saved = object.at("prefill_saved_at_half")};
  if (!object.contains("evaluator")) return layer;
  layer.kept.emplace();
  layer.kept->asked = object.contains("asked") ? whole_number(object, "asked") : answered;
  for (size_t i = 0; i < kTriedShares.size(); ++i)
    layer.kept->whole[i] = whole_number(object.at("evaluator"), share_name(kTriedShares[i]));
  if (object.contains("evaluator-prompt")) {
    const Json& before = object.at("evaluator-prompt");
    layer.kept->before = {before.contains("asked") ? whole_number(before, "asked") : answered,
                          whole_number(before, share_name(kTriedShares[kHalf]))};
  }
  return layer;
}

FoundHeads found_of(const Json& object, const ModelSpec& spec) {
  FoundHeads found{.best = heads_of(object, spec),
                   .tokens = whole_number(object, "tokens"),
                   .prompts = whole_number(object, "prompts"),
                   .window = whole_number(object, "window"),
                   .asked = whole_number(object, "asked"),
                   .answered = whole_number(object, "answered"),
                   .layers = {}};
  for (const Json& layer : object.at("layers")) found.layers.push_back(layer_of(layer, spec, found.answered));
  if (std::ranges::none_of(found.layers,
                           [&](const LayerHeads& l) { return l.evaluator.layer == found.best.layer; }))
    throw Error("its layer is not among those that were searched");
  if (object.contains("better"))
    found.other = {pruning_policy_from_name(object.at("better").at("policy").get<std::string>()),
                   whole_number(object.at("better"), "kept")};
  return found;
}

}  // namespace

const LayerHeads& FoundHeads::chosen() const {
  const auto place =
      std::ranges::find_if(layers, [&](const LayerHeads& l) { return l.evaluator.layer == best.layer; });
  CHECK(place != layers.end());
  return *place;
}

std::string FoundHeads::warning() const {
  if (!could_be_tried()) {
    return fmt::format(
        "the model finds {} of {} facts when all is kept, too few to try its heads by: layer {} is the one "
        "that looks at them most, and nobody knows what its choice is worth",
        answered, asked, best.layer);
  }
  const auto kept = [&](uint32_t answers) { return fmt::format("{:.0f} %", 100.0 * answers / answered); };
  const LayerHeads& layer = chosen();
  if (!layer.kept || is_enough(layer)) return "";
  std::string text = fmt::format(
      "no layer's heads keep {:.0f} % of the answers at half of the tokens; the best, of layer {}, keep {}",
      100 * kEnoughAnswers, best.layer, kept(layer.kept->whole[kHalf]));
  if (other && other->kept > layer.kept->whole[kHalf])
    text += fmt::format("; --kv-policy {} keeps {}", name(other->policy), kept(other->kept));
  return text;
}

std::string evaluator_heads_path(const std::string& model_path) {
  return beside_model(model_path, "kv-heads");
}

void write_evaluator_heads(const std::string& path, const FoundHeads& found, const LoadedModel& model) {
  Json object = {{"layer", found.best.layer},  {"heads", found.best.heads}, {"tokens", found.tokens},
                 {"prompts", found.prompts},   {"window", found.window},    {"asked", found.asked},
                 {"answered", found.answered}, {"layers", Json::array()}};
  for (const LayerHeads& layer : found.layers) object["layers"].push_back(json_of(layer));
  if (found.other) object["better"] = {{"policy", name(found.other->policy)}, {"kept", found.other->kept}};
  write_model_json(path, kHeadsFile, std::move(object), model);
}

FoundHeads read_evaluator_heads(const std::string& path, const LoadedModel& model) {
  const Json object = read_model_json(path, kHeadsFile, model.file());
  try {
    return found_of(object, model.spec());
  } catch (const std::exception& problem) {
    throw Error("{} does not say {} ({}): remove it, or \"{}\" writes it anew", path, kHeadsFile.says,
                problem.what(), kHeadsFile.command);
  }
}

}  // namespace quire
