#include <cmath>

#include "model/arch/arch.h"

namespace quire::arch {
namespace {

ModelSpec later_gemma_spec(const ModelFile& file, const SpecOptions& options, const RopeDefaults& rope,
                           float usual_soft_cap) {
  const float soft_cap = Keys(file).real("attn_logit_softcapping", usual_soft_cap);
  ModelSpec spec = common_spec(file, options, rope);
  spec.embedding_scale = std::sqrt(float(spec.dim));
  set_gate(spec, {.kind = Nonlinearity::gelu_tanh});
  // Files that do not give the scale: only the largest of each family divides by the width per head instead.
  const bool is_largest = spec.layers.size() == (spec.architecture == "gemma2" ? 46 : 62);
  const bool by_width = is_largest && !file.metadata().has(spec.architecture + ".attention.scale");
  for (LayerSpec& layer : spec.layers) {
    GqaSpec& gqa = layer.gqa();
    layer.norms.post = true;
    gqa.soft_cap = soft_cap;
    if (by_width) gqa.scale = 1.0f / std::sqrt(float(spec.dim) / float(gqa.heads));
  }
  return spec;
}

}  // namespace

ModelSpec gemma_spec(const ModelFile& file, const SpecOptions& options) {
  ModelSpec spec = common_spec(file, options, {});
  spec.embedding_scale = std::sqrt(float(spec.dim));
  set_gate(spec, {.kind = Nonlinearity::gelu_tanh});
  return spec;
}

ModelSpec gemma2_spec(const ModelFile& file, const SpecOptions& options) {
  const Keys keys(file);
  ModelSpec spec = later_gemma_spec(file, options, {}, 50);
  spec.logit_soft_cap = keys.real("final_logit_softcapping", 30);
  read_windows(file, spec, {.window = 4096, .pattern = 2});
  return spec;
}

// Window layers rotate with a base of their own and are never scaled.
ModelSpec gemma3_spec(const ModelFile& file, const SpecOptions& options) {
  const Keys keys(file);
  ModelSpec spec = later_gemma_spec(file, options, {.base = 1000000.0f}, 0);
  const uint32_t key_dim = spec.layers.front().gqa().key_dim;
  spec.ropes.push_back(plain_rope(key_dim, keys.real("rope.freq_base_swa", 10000), RopePairing::halves));
  spec.logit_soft_cap = keys.real("final_logit_softcapping", 0);
  read_windows(file, spec, {.window = 1024, .pattern = 6});
  for (LayerSpec& layer : spec.layers) {
    layer.gqa().query_key_norm = QueryKeyNorm::per_head;
    if (layer.gqa().window > 0) layer.gqa().rope = 1;
  }
  return spec;
}

}  // namespace quire::arch
