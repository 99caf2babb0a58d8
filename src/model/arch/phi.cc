#include "model/arch/arch.h"

namespace quire::arch {

// Phi-3 and Phi-4: query, key and value in one tensor, gate and up in another.
ModelSpec phi3_spec(const ModelFile& file, const SpecOptions& options) {
  ModelSpec spec = common_spec(file, options, {});
  read_windows(file, spec, {});
  return spec;
}

}  // namespace quire::arch
