#include "model/arch/arch.h"

namespace quire::arch {

// Phi-3 and Phi-4: query, key and value in one tensor, gate and up in another.
ModelSpec phi3_spec(const ModelFile& file, const SpecOptions& options) {
  const Keys keys(file);
  ModelSpec spec = common_spec(file, options, {});
  const auto window = file.metadata().maybe_number(keys("attention.sliding_window")).value_or(0);
  if (window > 0 && window < spec.context) {
    for (LayerSpec& layer : spec.layers) layer.window = uint32_t(window);
  }
  return spec;
}

}  // namespace quire::arch
