#include <fmt/format.h>

#include "base/error.h"
#include "model/arch/arch.h"

// Families whose attention has a gate with a matrix of its own: Laguna and Muse Glimmer.

namespace quire::arch {
namespace {

// Of every layer: of each head, or of each value. Files do not say which, but in how many rows their matrices have.
GateOf read_gate(const ModelFile& file, const GqaSpec& gqa, size_t layer) {
  const auto said = file.metadata().maybe_flag("quire.attention.gate_of_values");
  if (said) return *said ? GateOf::values : GateOf::heads;
  const TensorEntry* gate = file.find(fmt::format("blk.{}.attn_gate.weight", layer));
  const bool is_wide = gate != nullptr && gate->shape.size() == 2 && gate->shape[0] != gqa.heads;
  return is_wide ? GateOf::values : GateOf::heads;
}

// All but every n-th layer, of which the first is one; or those that the file flags.
void read_late_windows(const ModelFile& file, ModelSpec& spec) {
  const Keys keys(file);
  const std::string pattern = keys("attention.sliding_window_pattern");
  const MetadataValue* said = file.metadata().find(pattern);
  read_windows(file, spec, {});
  if (said != nullptr && std::holds_alternative<std::vector<bool>>(*said)) return;
  const uint64_t every = said == nullptr ? 4 : file.metadata().number(pattern);
  const uint64_t window = file.metadata().maybe_number(keys("attention.sliding_window")).value_or(0);
  if (every == 0 || window == 0) return;
  const uint32_t seen = keys.count("attention.sliding_window");
  for (size_t i = 0; i < spec.layers.size(); ++i) spec.layers[i].gqa().window = i % every == 0 ? 0 : seen;
}

}  // namespace

// Layers with a window may have other heads, and rotate by a base and a share of their own; the gate is a softplus.
ModelSpec laguna_spec(const ModelFile& file, const SpecOptions& options) {
  const Keys keys(file);
  ModelSpec spec = common_spec(file, options, {.base = 500000.0f});
  read_late_windows(file, spec);
  set_query_key_norm(spec, QueryKeyNorm::per_head);
  if (spec.ropes.size() != 1)
    throw Error("{}: {} has several widths of heads, which is not supported", file.path(),
                keys("attention.key_length"));
  const uint32_t dim = spec.layers.front().gqa().key_dim;
  const uint32_t rotated = keys.maybe_count("rope.dimension_count_swa").value_or(dim);
  if (rotated > dim || rotated % 2 != 0)
    throw Error("{}: {} is {}, of heads of {}", file.path(), keys("rope.dimension_count_swa"), rotated, dim);
  spec.ropes.push_back(plain_rope(rotated, keys.real("rope.freq_base_swa", 10000), RopePairing::halves));
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    GqaSpec& gqa = spec.layers[i].gqa();
    if (gqa.window > 0) gqa.rope = 1;
    gqa.own_gate = read_gate(file, gqa, i);
    gqa.gate_function = Nonlinearity::softplus;
  }
  read_routing(file, spec, {.score = RouterScore::sigmoid});
  read_shared_experts(file, spec);
  return spec;
}

// The embedding is normed without weights; layers with a window alone rotate; norms after the blocks have an epsilon of their own.
ModelSpec muse_glimmer_spec(const ModelFile& file, const SpecOptions& options) {
  const Keys keys(file);
  ModelSpec spec = common_spec(file, options, {.pairing = RopePairing::interleaved});
  read_windows(file, spec, {.pattern = 4});
  rotate_windows_only(spec);
  set_query_key_norm(spec, QueryKeyNorm::per_head);
  spec.embedding_norm = spec.output_norm;
  spec.embedding_norm->has_weights = false;
  for (LayerSpec& layer : spec.layers) {
    layer.gqa().own_gate = GateOf::values;
    layer.norms.post = true;
    layer.norms.post_epsilon = float(file.metadata().maybe_real("quire.post_norm_epsilon").value_or(1e-8));
  }
  spec.logit_scale = keys.real("logit_scale", 1);
  spec.logit_soft_cap = keys.real("final_logit_softcapping", 0);
  return spec;
}

}  // namespace quire::arch
