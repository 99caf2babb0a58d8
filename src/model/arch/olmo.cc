#include <algorithm>

#include "model/arch/arch.h"

namespace quire::arch {
namespace {

bool has_windows(const ModelSpec& spec) {
  return std::ranges::any_of(spec.layers, [](const LayerSpec& layer) { return layer.window() > 0; });
}

}  // namespace

// Of version 3 most layers have a window, and these rotate by frequencies that are not scaled.
ModelSpec olmo2_spec(const ModelFile& file, const SpecOptions& options) {
  const Keys keys(file);
  ModelSpec spec = common_spec(file, options, {});
  use_post_norms(spec);
  set_query_key_norm(spec, QueryKeyNorm::whole);
  read_windows(file, spec, {.pattern = 4});
  if (!has_windows(spec)) return spec;
  const auto dims = uint32_t(2 * spec.ropes.front().inverse_frequencies.size());
  const float base = keys.real("rope.freq_base_swa", keys.real("rope.freq_base", 10000));
  spec.ropes.push_back(plain_rope(dims, base, RopePairing::halves));
  for (LayerSpec& layer : spec.layers) {
    if (layer.window() > 0) layer.gqa().rope = uint32_t(spec.ropes.size() - 1);
  }
  return spec;
}

ModelSpec olmoe_spec(const ModelFile& file, const SpecOptions& options) {
  ModelSpec spec = common_spec(file, options, {});
  set_query_key_norm(spec, QueryKeyNorm::whole);
  read_routing(file, spec, {.normalized = false});
  return spec;
}

// EXAONE 4: where some layers have a window, the others do not rotate.
ModelSpec exaone4_spec(const ModelFile& file, const SpecOptions& options) {
  ModelSpec spec = common_spec(file, options, {});
  use_post_norms(spec);
  set_query_key_norm(spec, QueryKeyNorm::per_head);
  read_windows(file, spec, {.window = spec.layers.size() == 64 ? 4096u : 0u, .pattern = 4});
  if (has_windows(spec)) rotate_windows_only(spec);
  return spec;
}

}  // namespace quire::arch
