#include <cmath>

#include <fmt/format.h>

#include "base/error.h"
#include "model/arch/arch.h"

// Gemma 4: heads of two sizes, values that are normed or are the keys, layers that read others' rows, inputs of each layer's own, a
// factor on what a layer leaves, and experts beside a dense MLP.

namespace quire::arch {
namespace {

void read_values(const ModelFile& file, const Keys& keys, ModelSpec& spec) {
  const std::optional<bool> said = keys.all().maybe_flag(keys("attention.keys_are_values"));
  for (size_t l = 0; l < spec.layers.size(); ++l) {
    GqaSpec& gqa = spec.layers[l].gqa();
    const bool has_none = file.find(fmt::format("blk.{}.attn_v.weight", l)) == nullptr;
    gqa.values = gqa.window == 0 && said.value_or(has_none) ? Values::keys_normed : Values::own_normed;
    if (gqa.values == Values::keys_normed && gqa.value_dim != gqa.key_dim)
      throw Error("{}: {} is {}, but the values of layer {} are its keys of {}", keys.all().file_name(),
                  keys("attention.value_length"), gqa.value_dim, l, gqa.key_dim);
  }
}

// Experts have a dense MLP beside them.
void add_dense_mlps(const Keys& keys, ModelSpec& spec) {
  const std::vector<uint32_t> widths = keys.counts("feed_forward_length", spec.layers.size());
  for (size_t l = 0; l < spec.layers.size(); ++l) {
    LayerSpec& layer = spec.layers[l];
    if (!std::holds_alternative<ExpertMlpSpec>(layer.mlp)) continue;
    if (widths.empty()) keys.count("feed_forward_length");  // which says what is missing
    ExpertMlpSpec experts = std::get<ExpertMlpSpec>(layer.mlp);
    experts.scales_shares = true;
    layer.mlp = ParallelMlpSpec{
        .dense = {.width = widths[l], .gate = experts.gate}, .experts = experts, .norm = spec.output_norm};
    layer.norms.mlp_tensor.clear();
  }
}

}  // namespace

ModelSpec gemma4_spec(const ModelFile& file, const SpecOptions& options) {
  const Keys keys(file);
  ModelSpec spec = common_spec(file, options, {.base = 1000000.0f});
  spec.embedding_scale = std::sqrt(float(spec.dim));
  spec.logit_soft_cap = keys.real("final_logit_softcapping", 0);
  set_gate(spec, {.kind = Nonlinearity::gelu_tanh});
  set_query_key_norm(spec, QueryKeyNorm::per_head);
  read_windows(file, spec, {.window = 512, .pattern = 6});
  read_window_heads(file, spec);
  read_values(file, keys, spec);
  read_sharing(file, spec);
  read_layer_inputs(file, spec);
  read_output_scales(file, spec);
  add_dense_mlps(keys, spec);
  for (size_t l = 0; l < spec.layers.size(); ++l) {
    LayerSpec& layer = spec.layers[l];
    layer.norms.post = true;
    layer.gqa().scale = keys.real("attention.scale", 1);
  }
  return spec;
}

}  // namespace quire::arch
