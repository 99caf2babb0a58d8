#include "model/arch/arch.h"

namespace quire::arch {

// Half of a head rotates, in neighbouring pairs; gate and up are in one tensor.
ModelSpec chatglm_spec(const ModelFile& file, const SpecOptions& options) {
  return common_spec(file, options, {.pairing = RopePairing::interleaved});
}

ModelSpec glm4_spec(const ModelFile& file, const SpecOptions& options) {
  ModelSpec spec = chatglm_spec(file, options);
  for (LayerSpec& layer : spec.layers) layer.norms.post = true;
  return spec;
}

// GLM 4.5 to 4.7.
ModelSpec glm4_moe_spec(const ModelFile& file, const SpecOptions& options) {
  ModelSpec spec = common_spec(file, options, {});
  for (LayerSpec& layer : spec.layers) layer.norms.mlp_tensor = "post_attention_norm";
  maybe_query_key_norm(file, spec, QueryKeyNorm::per_head);
  read_routing(file, spec, {.score = RouterScore::sigmoid});
  read_shared_experts(file, spec);
  return spec;
}

}  // namespace quire::arch
