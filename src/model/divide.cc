#include "model/divide.h"

#include <algorithm>
#include <optional>
#include <variant>

#include <fmt/format.h>

#include "base/check.h"
#include "model/blocks/divided_experts.h"

namespace quire {
namespace {

using Why = std::optional<std::string>;

Why too_few(const char* what, uint64_t has, uint32_t ranks) {
  if (has >= ranks) return std::nullopt;
  return fmt::format("has {} {}, which {} ranks cannot divide", has, what, ranks);
}

Why of_heads(const GqaSpec& gqa, uint32_t ranks) {
  if (gqa.output_gate || gqa.own_gate != GateOf::none)
    return "has attention with a gate, which ranks do not divide yet";
  if (gqa.query_key_norm == QueryKeyNorm::whole || gqa.query_key_norm == QueryKeyNorm::per_head_own)
    return "norms the queries of all heads at once or each by weights of its own, which ranks do not divide "
           "yet";
  if (gqa.blocks) return "has attention whose rows an index chooses, which ranks do not divide yet";
  return too_few("KV heads", gqa.kv_heads, ranks);
}

Why of_mlp(const MlpSpec& mlp, uint32_t ranks) {
  if (const auto* experts = std::get_if<ExpertMlpSpec>(&mlp)) {
    if (experts->latent != 0 || experts->by_token != 0)
      return "has experts that read less than a row, or that a token's number names, which ranks do not "
             "divide yet";
    return too_few("experts", experts->count, ranks);
  }
  const auto* dense = std::get_if<DenseMlpSpec>(&mlp);
  if (dense == nullptr) return "has experts beside an MLP in one block, which ranks do not divide yet";
  if (dense->spread)
    return "has an MLP whose whole rows are looked at in between, which ranks do not divide yet";
  return too_few("values in its hidden layer", dense->width, ranks);
}

Why of_layer(const LayerSpec& layer, uint32_t ranks) {
  const auto* gqa = std::get_if<GqaSpec>(&layer.mixer);
  if (gqa == nullptr)
    return "has no attention with keys and values for every head (it is recurrent, or keeps other rows), "
           "which "
           "ranks do not divide yet";
  if (Why why = of_heads(*gqa, ranks)) return why;
  if (layer.beside || layer.input || layer.low_rank || layer.streams)
    return "has more than attention and an MLP, which ranks do not divide yet";
  if (layer.shared) {
    if (Why why = of_mlp(*layer.shared, ranks)) return why;
  }
  return of_mlp(layer.mlp, ranks);
}

}  // namespace

std::string why_undivided(const ModelFile& file, const ModelSpec& spec, uint32_t ranks) {
  const auto sentence = [&](const std::string& who, const std::string& why) {
    return fmt::format("{}: {} {}; start it alone, without mpirun", file.path(), who, why);
  };
  for (size_t l = 0; l < spec.layers.size(); ++l) {
    if (const Why why = of_layer(spec.layers[l], ranks)) return sentence(fmt::format("layer {}", l), *why);
  }
  if (spec.streams > 1 || spec.hyper || spec.joins || spec.layer_inputs.width > 0)
    return sentence("the model",
                    "has more than one residual stream, or inputs of layers, which ranks do not "
                    "divide yet");
  if (const Why why = too_few("values in a row", spec.dim, ranks)) return sentence("the model", *why);
  if (const Why why = too_few("tokens in its vocabulary", spec.vocab, ranks))
    return sentence("the model", *why);
  return "";
}

void divide(ModelSpec& spec, RankPlace place) {
  CHECK(place.rank < place.of);
  spec.place = place;
  for (LayerSpec& layer : spec.layers) {
    std::get<GqaSpec>(layer.mixer).place = place;
    if (auto* dense = std::get_if<DenseMlpSpec>(&layer.mlp)) {
      dense->place = place;
    } else {
      const ExpertMlpSpec experts = std::get<ExpertMlpSpec>(layer.mlp);
      layer.mlp = make_divided_experts(experts, spec.dim, place);
    }
    if (layer.shared) layer.shared->place = place;
  }
}

GatherCost gather_cost(const ModelSpec& spec, uint32_t ranks) {
  GatherCost cost;
  // Of a row of so many values what the rank with the fewest of its own receives.
  const auto received = [&](size_t width, size_t unit) {
    size_t least = width;
    for (uint32_t r = 0; r < ranks; ++r) least = std::min(least, share_of(width, unit, {r, ranks}).count);
    return double(width - least) * sizeof(float);
  };
  const auto of_product = [&](size_t rows) { return received(rows, row_unit(rows, ranks)); };
  if (ranks == 1) return cost;
  for (const LayerSpec& layer : spec.layers) {
    const GqaSpec& gqa = layer.gqa();
    const size_t unit = size_t(gqa.heads) / gqa.kv_heads * gqa.value_dim;
    cost.gathers += 2;
    cost.bytes += received(unit * gqa.kv_heads, unit) + of_product(spec.dim);
    const auto add_dense = [&](const DenseMlpSpec& dense) {
      cost.gathers += 2;
      cost.bytes += of_product(dense.width) + of_product(spec.dim);
    };
    if (const auto* experts = std::get_if<ExpertMlpSpec>(&layer.mlp)) {
      // Of as many experts as are others', if a token chooses as it likes.
      ++cost.gathers;
      cost.bytes += double(experts->used) * of_product(spec.dim);
    } else {
      add_dense(std::get<DenseMlpSpec>(layer.mlp));
    }
    if (layer.shared) add_dense(*layer.shared);
  }
  ++cost.gathers;
  cost.logit_bytes = double(spec.vocab - rows_of(spec.vocab, {0, ranks}).count) * sizeof(float);
  return cost;
}

}  // namespace quire
