#include "model/placement.h"

#include <algorithm>
#include <utility>
#include <variant>

#include <fmt/format.h>

#include "model/layer_blocks.h"

namespace quire {
namespace {

// Experts that can be the other side's: what they read comes with the stream.
bool has_experts(const LayerSpec& layer) {
  return std::holds_alternative<ExpertMlpSpec>(layer.mlp) && layer.norms.mlp_input == BlockInput::stream;
}

// "0-11,13" of the layers whose block is the host's.
std::string ranges(const ModelSpec& spec, Side LayerSides::*block) {
  std::string text;
  const size_t layers = spec.layers.size();
  for (size_t begin = 0; begin < layers; ++begin) {
    size_t end = begin;
    while (end < layers && spec.layers[end].sides.*block == Side::host) ++end;
    if (end == begin) continue;
    if (!text.empty()) text += ",";
    text += end == begin + 1 ? fmt::format("{}", begin) : fmt::format("{}-{}", begin, end - 1);
    begin = end;
  }
  return text;
}

}  // namespace

bool can_be_divided(const ModelSpec& spec) {
  if (spec.layer_inputs.width > 0 || spec.hyper) return false;
  return std::ranges::none_of(spec.layers, [&](const LayerSpec& layer) {
    return layer.beside || std::ranges::any_of(block_of(layer.mixer, spec.dim)->cached(), &KvStream::state);
  });
}

void place(ModelSpec& spec, const Placement& placement) {
  const size_t layers = spec.layers.size();
  const size_t first = layers - std::min<size_t>(placement.device_layers, layers);
  for (size_t l = 0; l < layers; ++l) {
    const Side side = l < first ? Side::host : Side::device;
    spec.layers[l].sides = {side, side};
    for (const KvStream& stream : block_of(spec.layers[l].mixer, spec.dim)->cached()) {
      if (stream.shares_with) spec.layers[l].sides.mixer = spec.layers[*stream.shares_with].sides.mixer;
    }
  }
  uint32_t left = placement.host_experts;
  for (size_t l = layers; l-- > 0 && left > 0;) {
    if (!has_experts(spec.layers[l])) continue;
    spec.layers[l].sides.mlp = Side::host;
    --left;
  }
}

bool is_split(const ModelSpec& spec) {
  return std::ranges::any_of(spec.layers, [](const LayerSpec& layer) {
    return layer.sides.mixer == Side::host || layer.sides.mlp == Side::host;
  });
}

uint32_t expert_layers(const ModelSpec& spec) {
  return uint32_t(std::ranges::count_if(spec.layers, has_experts));
}

uint32_t crossings(const ModelSpec& spec) {
  uint32_t count = 0;
  Side at = spec.layers.empty() ? Side::device : spec.layers.front().sides.mixer;
  const auto go_to = [&](Side side) { count += std::exchange(at, side) != side; };
  for (const LayerSpec& layer : spec.layers) {
    go_to(layer.sides.mixer);
    go_to(layer.sides.mlp);
  }
  go_to(Side::device);  // the head
  return count;
}

std::string placement_mark(const ModelSpec& spec) {
  if (!is_split(spec)) return "";
  return fmt::format("/host:{};{}", ranges(spec, &LayerSides::mixer), ranges(spec, &LayerSides::mlp));
}

}  // namespace quire
