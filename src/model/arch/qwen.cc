#include "model/arch/arch.h"

namespace quire::arch {

ModelSpec qwen2_spec(const ModelFile& file, const SpecOptions& options) {
  ModelSpec spec = common_spec(file, options, {.base = 1000000.0f});  // its biases are in the file
  read_windows(file, spec, {});
  return spec;
}

ModelSpec qwen3_spec(const ModelFile& file, const SpecOptions& options) {
  ModelSpec spec = qwen2_spec(file, options);
  set_query_key_norm(spec, QueryKeyNorm::per_head);
  return spec;
}

ModelSpec qwen3_moe_spec(const ModelFile& file, const SpecOptions& options) {
  return qwen3_spec(file, options);  // its experts are chosen as is usual
}

ModelSpec qwen2_moe_spec(const ModelFile& file, const SpecOptions& options) {
  ModelSpec spec = qwen2_spec(file, options);
  read_routing(file, spec, {.normalized = false});
  read_shared_experts(file, spec, OutputGate::sigmoid);
  return spec;
}

}  // namespace quire::arch
