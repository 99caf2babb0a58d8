#include "model/arch/arch.h"

namespace quire::arch {

ModelSpec gpt2_spec(const ModelFile& file, const SpecOptions& options) {
  ModelSpec spec = common_spec(file, options, {});
  spec.learned_positions = true;
  spec.ropes.clear();
  spec.output_norm.kind = NormKind::layer;
  set_gate(spec, {.kind = Nonlinearity::gelu_tanh});
  for (LayerSpec& layer : spec.layers) {
    layer.norms.norm.kind = NormKind::layer;
    layer.gqa().rope.reset();
    if (auto* mlp = std::get_if<DenseMlpSpec>(&layer.mlp)) mlp->gated = false;
  }
  return spec;
}

ModelSpec gpt_oss_spec(const ModelFile& file, const SpecOptions& options) {
  ModelSpec spec = common_spec(file, options, {.base = 150000.0f, .yarn_truncates = false});
  for (LayerSpec& layer : spec.layers) {
    layer.norms.mlp_tensor = "post_attention_norm";
    layer.gqa().sinks = true;
  }
  set_routing(spec, Routing::top_then_softmax);
  Gate gate{.kind = Nonlinearity::clamped_swiglu};
  gate.limit = float(file.metadata().maybe_real("quire.swiglu_limit").value_or(gate.limit));
  gate.slope = float(file.metadata().maybe_real("quire.swiglu_alpha").value_or(gate.slope));
  set_gate(spec, gate);
  read_windows(file, spec, {.window = 128, .pattern = 2});
  return spec;
}

}  // namespace quire::arch
