#include "model/arch/arch.h"

namespace quire::arch {

ModelSpec gpt2_spec(const ModelFile& file, const SpecOptions& options) {
  ModelSpec spec = common_spec(file, options, {});
  spec.learned_positions = true;
  spec.ropes.clear();
  use_layer_norms(spec);
  use_plain_mlps(spec, Nonlinearity::gelu_tanh);
  for (LayerSpec& layer : spec.layers) layer.gqa().rope.reset();
  return spec;
}

// Attention and MLP read the same stream, through norms of their own.
ModelSpec gpt_neox_spec(const ModelFile& file, const SpecOptions& options) {
  ModelSpec spec = common_spec(file, options, {});
  use_layer_norms(spec);
  use_plain_mlps(spec, Nonlinearity::gelu_erf);
  const bool parallel = Keys(file).flag("use_parallel_residual", true);
  for (LayerSpec& layer : spec.layers)
    layer.norms.mlp_input = parallel ? BlockInput::stream_before : BlockInput::stream;
  return spec;
}

ModelSpec starcoder2_spec(const ModelFile& file, const SpecOptions& options) {
  ModelSpec spec = common_spec(file, options, {});
  use_layer_norms(spec);
  use_plain_mlps(spec, Nonlinearity::gelu_tanh);
  read_windows(file, spec, {});
  return spec;
}

// Attention and MLP read the same rows; in the larger ones each has a norm of its own, and the file calls attention's the second.
ModelSpec falcon_spec(const ModelFile& file, const SpecOptions& options) {
  ModelSpec spec = common_spec(file, options, {});
  use_layer_norms(spec);
  use_plain_mlps(spec, Nonlinearity::gelu_erf);
  const bool two_norms = file.find("blk.0.attn_norm_2.weight") != nullptr;
  for (LayerSpec& layer : spec.layers) {
    layer.norms.mixer_tensor = two_norms ? "attn_norm_2" : "attn_norm";
    layer.norms.mlp_tensor = "attn_norm";
    layer.norms.mlp_input = two_norms ? BlockInput::stream_before : BlockInput::shared;
  }
  return spec;
}

ModelSpec gpt_oss_spec(const ModelFile& file, const SpecOptions& options) {
  ModelSpec spec = common_spec(file, options, {.base = 150000.0f, .yarn_truncates = false});
  for (LayerSpec& layer : spec.layers) {
    layer.norms.mlp_tensor = "post_attention_norm";
    layer.gqa().sinks = true;
  }
  read_routing(file, spec, {.score = RouterScore::softmax_of_chosen});
  Gate gate{.kind = Nonlinearity::clamped_swiglu};
  gate.limit = float(file.metadata().maybe_real("quire.swiglu_limit").value_or(gate.limit));
  gate.slope = float(file.metadata().maybe_real("quire.swiglu_alpha").value_or(gate.slope));
  set_gate(spec, gate);
  read_windows(file, spec, {.window = 128, .pattern = 2});
  return spec;
}

}  // namespace quire::arch
