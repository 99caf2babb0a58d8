#include "model/arch/arch.h"

namespace quire::arch {

ModelSpec qwen2_spec(const ModelFile& file, const SpecOptions& options) {
  ModelSpec spec = common_spec(file, options, {.base = 1000000.0f});  // its biases are in the file
  read_windows(file, spec, {});
  return spec;
}

ModelSpec qwen3_spec(const ModelFile& file, const SpecOptions& options) {
  ModelSpec spec = qwen2_spec(file, options);
  for (LayerSpec& layer : spec.layers) layer.gqa().query_key_norm = QueryKeyNorm::per_head;
  return spec;
}

ModelSpec qwen3_moe_spec(const ModelFile& file, const SpecOptions& options) {
  ModelSpec spec = qwen3_spec(file, options);
  const bool normalized = file.metadata().maybe_flag("qwen3moe.expert_weights_norm").value_or(true);
  set_routing(spec, normalized ? Routing::softmax_then_top_normalized : Routing::softmax_then_top);
  return spec;
}

}  // namespace quire::arch
