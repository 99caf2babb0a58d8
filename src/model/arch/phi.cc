#include "model/arch/arch.h"

namespace quire::arch {

// Phi-3 and Phi-4: query, key and value in one tensor, gate and up in another.
ModelSpec phi3_spec(const ModelFile& file, const SpecOptions& options) {
  ModelSpec spec = common_spec(file, options, {});
  read_windows(file, spec, {});
  return spec;
}

// Attention and MLP read the same rows.
ModelSpec phi2_spec(const ModelFile& file, const SpecOptions& options) {
  ModelSpec spec = common_spec(file, options, {});
  use_layer_norms(spec);
  use_plain_mlps(spec, Nonlinearity::gelu_tanh);
  for (LayerSpec& layer : spec.layers) layer.norms.mlp_input = BlockInput::shared;
  return spec;
}

// Phi-3.5-MoE. Its experts are chosen one after the other, by scores that need to be near the best.
ModelSpec phi_moe_spec(const ModelFile& file, const SpecOptions& options) {
  ModelSpec spec = phi3_spec(file, options);
  use_layer_norms(spec);
  const float jitter = float(file.metadata().maybe_real("quire.router_jitter").value_or(0.01));
  read_routing(file, spec, {.score = RouterScore::sparse_mixer, .nearness = 2 * jitter});
  return spec;
}

}  // namespace quire::arch
