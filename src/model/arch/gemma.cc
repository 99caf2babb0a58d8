#include <cmath>

#include "model/arch/arch.h"

namespace quire::arch {
namespace {

ModelSpec gemma_spec(const ModelFile& file, const SpecOptions& options, const RopeDefaults& rope) {
  ModelSpec spec = common_spec(file, options, rope);
  spec.embedding_scale = std::sqrt(float(spec.dim));
  spec.post_norms = true;
  spec.nonlinearity = Nonlinearity::gelu_tanh;
  return spec;
}

}  // namespace

ModelSpec gemma2_spec(const ModelFile& file, const SpecOptions& options) {
  const Keys keys(file);
  ModelSpec spec = gemma_spec(file, options, {});
  spec.attention_soft_cap = keys.real("attn_logit_softcapping", 50);
  spec.logit_soft_cap = keys.real("final_logit_softcapping", 30);
  const uint32_t window = keys.maybe_count("attention.sliding_window").value_or(4096);
  for (size_t i = 0; i < spec.layers.size(); i += 2) spec.layers[i].window = window;
  return spec;
}

// Window layers rotate with a base of their own and are never scaled.
ModelSpec gemma3_spec(const ModelFile& file, const SpecOptions& options) {
  const Keys keys(file);
  ModelSpec spec = gemma_spec(file, options, {.base = 1000000.0f});
  spec.query_key_norm = QueryKeyNorm::per_head;
  spec.ropes.push_back(plain_rope(spec.key_dim, keys.real("rope.freq_base_swa", 10000), RopePairing::halves));
  const uint32_t window = keys.maybe_count("attention.sliding_window").value_or(1024);
  const uint32_t pattern = keys.maybe_count("attention.sliding_window_pattern").value_or(6);
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    if ((i + 1) % pattern == 0) continue;
    spec.layers[i].window = window;
    spec.layers[i].rope = 1;
  }
  return spec;
}

}  // namespace quire::arch
