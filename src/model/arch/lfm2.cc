#include "model/arch/arch.h"

namespace quire::arch {

// Gated short convolutions, and attention in a few layers.
ModelSpec lfm2_spec(const ModelFile& file, const SpecOptions& options) {
  ModelSpec spec = common_spec(file, options, {.base = 1000000.0f}, Layers::mixed);
  spec.output_norm_tensor = "token_embd_norm";
  fill_mixers(spec, read_short_convolution(file, spec));
  for (LayerSpec& layer : spec.layers) {
    if (auto* gqa = std::get_if<GqaSpec>(&layer.mixer)) gqa->query_key_norm = QueryKeyNorm::per_head;
  }
  return spec;
}

ModelSpec lfm2_moe_spec(const ModelFile& file, const SpecOptions& options) {
  ModelSpec spec = lfm2_spec(file, options);
  read_routing(file, spec, {.score = RouterScore::sigmoid});
  return spec;
}

}  // namespace quire::arch
