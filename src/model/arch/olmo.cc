#include "model/arch/arch.h"

namespace quire::arch {

ModelSpec olmo2_spec(const ModelFile& file, const SpecOptions& options) {
  ModelSpec spec = common_spec(file, options, {});
  spec.pre_norms = false;
  spec.post_norms = true;
  spec.query_key_norm = QueryKeyNorm::whole;
  return spec;
}

}  // namespace quire::arch
