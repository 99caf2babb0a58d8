#include "model/arch/arch.h"

namespace quire::arch {

// Llama, Mistral and Mixtral. Rows of q and k are stored so that neighbouring values form a pair.
ModelSpec llama_spec(const ModelFile& file, const SpecOptions& options) {
  ModelSpec spec = common_spec(file, options, {.pairing = RopePairing::interleaved});
  read_windows(file, spec, {});
  return spec;
}

ModelSpec granite_spec(const ModelFile& file, const SpecOptions& options) {
  const Keys keys(file);
  ModelSpec spec = llama_spec(file, options);
  spec.embedding_scale = keys.real("embedding_scale", 1);
  for (LayerSpec& layer : spec.layers) layer.residual_scale = keys.real("residual_scale", 1);
  spec.logit_scale = 1.0f / keys.real("logit_scale", 1);
  return spec;
}

ModelSpec smollm3_spec(const ModelFile& file, const SpecOptions& options) {
  ModelSpec spec = llama_spec(file, options);
  const std::vector<bool> rotated = file.metadata().flags("smollm3.attention.rope_pattern");
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const bool rotates = i < rotated.size() ? rotated[i] : (i + 1) % 4 != 0;
    if (!rotates) spec.layers[i].gqa().rope.reset();
  }
  return spec;
}

}  // namespace quire::arch
