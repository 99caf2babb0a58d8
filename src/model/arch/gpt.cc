#include "model/arch/arch.h"

namespace quire::arch {

ModelSpec gpt2_spec(const ModelFile& file, const SpecOptions& options) {
  ModelSpec spec = common_spec(file, options, {});
  spec.norm = NormKind::layer;
  spec.learned_positions = true;
  spec.gate.kind = Nonlinearity::gelu_tanh;
  spec.gated_mlp = false;
  spec.ropes.clear();
  for (LayerSpec& layer : spec.layers) layer.rope.reset();
  return spec;
}

ModelSpec gpt_oss_spec(const ModelFile& file, const SpecOptions& options) {
  ModelSpec spec = common_spec(file, options, {.base = 150000.0f, .yarn_truncates = false});
  spec.mlp_norm_tensor = "post_attention_norm";
  spec.attention_sinks = true;
  spec.experts.routing = Routing::top_then_softmax;
  spec.gate.kind = Nonlinearity::clamped_swiglu;
  spec.gate.limit = float(file.metadata().maybe_real("quire.swiglu_limit").value_or(spec.gate.limit));
  spec.gate.slope = float(file.metadata().maybe_real("quire.swiglu_alpha").value_or(spec.gate.slope));
  read_windows(file, spec, {.window = 128, .pattern = 2});
  return spec;
}

}  // namespace quire::arch
