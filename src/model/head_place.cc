#include "model/head_place.h"

#include "base/error.h"

namespace quire {

HeadPlace place_of_head(const ModelSpec& spec, uint32_t layer, uint32_t head) {
  if (layer >= spec.layers.size())
    throw Error("there is no layer {}: the model has {}, counted from 0", layer, spec.layers.size());
  const GqaSpec& gqa = spec.layers[layer].gqa();
  if (head >= gqa.heads) throw Error("there is no head {}: a layer has {}, counted from 0", head, gqa.heads);
  const uint32_t group = gqa.heads / gqa.kv_heads;
  HeadPlace place{.layer = layer,
                  .layers = uint32_t(spec.layers.size()),
                  .head = head,
                  .heads = gqa.heads,
                  .kv_head = head / group,
                  .kv_heads = gqa.kv_heads,
                  .sharing = {},
                  .window = gqa.window,
                  .sinks = gqa.sinks};
  for (uint32_t h = place.kv_head * group; h < (place.kv_head + 1) * group; ++h) place.sharing.push_back(h);
  return place;
}

}  // namespace quire
