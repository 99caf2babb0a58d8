#include "model/arch/arch.h"

namespace quire::arch {

ModelSpec olmo2_spec(const ModelFile& file, const SpecOptions& options) {
  ModelSpec spec = common_spec(file, options, {});
  for (LayerSpec& layer : spec.layers) {
    layer.norms.pre = false;
    layer.norms.post = true;
    layer.gqa().query_key_norm = QueryKeyNorm::whole;
  }
  return spec;
}

}  // namespace quire::arch
