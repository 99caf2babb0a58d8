#include <cmath>

#include "model/arch/arch.h"

namespace quire::arch {
namespace {

ModelSpec gemma_spec(const ModelFile& file, const SpecOptions& options, const RopeDefaults& rope) {
  ModelSpec spec = common_spec(file, options, rope);
  spec.embedding_scale = std::sqrt(float(spec.dim));
  spec.post_norms = true;
  spec.gate.kind = Nonlinearity::gelu_tanh;
  // Files that do not give the scale: only the largest of each family divides by the width per head instead.
  const bool is_largest = spec.layers.size() == (spec.architecture == "gemma2" ? 46 : 62);
  if (is_largest && !file.metadata().has(spec.architecture + ".attention.scale")) {
    spec.attention_scale = 1.0f / std::sqrt(float(spec.dim) / float(spec.heads));
  }
  return spec;
}

}  // namespace

ModelSpec gemma2_spec(const ModelFile& file, const SpecOptions& options) {
  const Keys keys(file);
  ModelSpec spec = gemma_spec(file, options, {});
  spec.attention_soft_cap = keys.real("attn_logit_softcapping", 50);
  spec.logit_soft_cap = keys.real("final_logit_softcapping", 30);
  read_windows(file, spec, {.window = 4096, .pattern = 2});
  return spec;
}

// Window layers rotate with a base of their own and are never scaled.
ModelSpec gemma3_spec(const ModelFile& file, const SpecOptions& options) {
  const Keys keys(file);
  ModelSpec spec = gemma_spec(file, options, {.base = 1000000.0f});
  spec.query_key_norm = QueryKeyNorm::per_head;
  spec.ropes.push_back(plain_rope(spec.key_dim, keys.real("rope.freq_base_swa", 10000), RopePairing::halves));
  spec.logit_soft_cap = keys.real("final_logit_softcapping", 0);
  spec.attention_soft_cap = keys.real("attn_logit_softcapping", 0);
  read_windows(file, spec, {.window = 1024, .pattern = 6});
  for (LayerSpec& layer : spec.layers) {
    if (layer.window > 0) layer.rope = 1;
  }
  return spec;
}

}  // namespace quire::arch
