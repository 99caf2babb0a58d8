#include <cmath>

#include <fmt/format.h>

#include "base/error.h"
#include "model/arch/arch.h"

namespace quire::arch {

// Layers with a window have more heads of keys and values, a base of their own and sinks; values are narrower than keys, and
// what attention gives is times a factor.
ModelSpec mimo2_spec(const ModelFile& file, const SpecOptions& options) {
  const Keys keys(file);
  ModelSpec spec = common_spec(file, options, {.base = 5000000.0f});
  read_windows(file, spec, {});
  if (spec.ropes.size() != 1)
    throw Error("{}: {} has several widths of heads, which is not supported", file.path(),
                keys("attention.key_length"));
  const uint32_t rotated = uint32_t(2 * spec.ropes.front().inverse_frequencies.size());
  spec.ropes.push_back(plain_rope(rotated, keys.real("rope.freq_base_swa", 10000), RopePairing::halves));
  const float scale = keys.real("attention.value_scale", 1);
  if (!(scale > 0) || !std::isfinite(scale))
    throw Error("{}: {} is {}", file.path(), keys("attention.value_scale"), scale);
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    LayerSpec& layer = spec.layers[i];
    layer.mixer_scale = scale;
    layer.gqa().sinks = file.find(fmt::format("blk.{}.attn_sinks.weight", i)) != nullptr;
    if (layer.window() > 0) layer.gqa().rope = 1;
  }
  read_routing(file, spec, {.score = RouterScore::sigmoid});
  return spec;
}

}  // namespace quire::arch
