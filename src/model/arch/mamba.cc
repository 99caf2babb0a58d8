#include <fmt/format.h>

#include "base/error.h"
#include "model/arch/arch.h"

// Mamba alone, and beside attention.

namespace quire::arch {

ModelSpec mamba2_spec(const ModelFile& file, const SpecOptions& options) {
  ModelSpec spec = common_spec(file, options, {}, Layers::mixed);
  fill_mixers(spec, read_state_space(file, spec));
  return spec;
}

ModelSpec mamba_spec(const ModelFile& file, const SpecOptions& options) {
  const Keys keys(file);
  if (keys.flag("ssm.dt_b_c_rms", false))
    throw Error("{}: {}, norms without weights within Mamba, is not supported", file.path(),
                keys("ssm.dt_b_c_rms"));
  ModelSpec spec = common_spec(file, options, {}, Layers::mixed);
  fill_mixers(spec, read_selective_scan(file, spec));
  return spec;
}

// Mamba-1 and attention without rotation; every other MLP or so is of experts, as the tensors say.
ModelSpec jamba_spec(const ModelFile& file, const SpecOptions& options) {
  const Keys keys(file);
  ModelSpec spec = common_spec(file, options, {}, Layers::mixed);
  SelectiveScanSpec scan = read_selective_scan(file, spec);
  scan.has_norms = true;
  fill_mixers(spec, scan);
  never_rotate(spec);
  read_routing(file, spec, {.normalized = false});
  const std::vector<uint32_t> widths = keys.counts_or_none("feed_forward_length", spec.layers.size());
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const bool has_router = file.find(fmt::format("blk.{}.ffn_gate_inp.weight", i)) != nullptr;
    if (std::holds_alternative<ExpertMlpSpec>(spec.layers[i].mlp) && !has_router)
      spec.layers[i].mlp = DenseMlpSpec{.width = widths[i]};
  }
  return spec;
}

// Falcon-H1: attention and Mamba-2 in every layer, which read the same rows.
ModelSpec falcon_h1_spec(const ModelFile& file, const SpecOptions& options) {
  ModelSpec spec = common_spec(file, options, {.base = 100000000000.0f});
  StateSpaceSpec net = read_state_space(file, spec);
  net.has_norm = file.find("blk.0.ssm_norm.weight") != nullptr;
  for (LayerSpec& layer : spec.layers) layer.beside = net;
  return spec;
}

// Granite 4. Layers of attention rotate in some files.
ModelSpec granite_hybrid_spec(const ModelFile& file, const SpecOptions& options) {
  ModelSpec spec = common_spec(file, options, {.pairing = RopePairing::interleaved}, Layers::mixed);
  read_granite_scales(file, spec);
  fill_mixers(spec, read_state_space(file, spec));
  if (!Keys(file).flag("rope.scaling.finetuned", true)) never_rotate(spec);
  read_shared_experts(file, spec);
  return spec;
}

// Nemotron-H: a layer is Mamba-2, attention, or an MLP or experts, none of which has a gate.
ModelSpec nemotron_h_spec(const ModelFile& file, const SpecOptions& options) {
  const Keys keys(file);
  ModelSpec spec = common_spec(file, options, {}, Layers::mixed);
  const StateSpaceSpec net = read_state_space(file, spec);
  read_routing(file, spec, {.score = RouterScore::sigmoid});
  read_shared_experts(file, spec);
  use_plain_mlps(spec, Nonlinearity::squared_relu);
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    LayerSpec& layer = spec.layers[i];
    layer.norms.mlp_tensor = layer.norms.mixer_tensor;
    const bool has_mlp = !std::holds_alternative<AbsentSpec>(layer.mlp);
    if (has_mlp && !std::holds_alternative<AbsentSpec>(layer.mixer))
      throw Error("{}: by {} and {} layer {} is attention and an MLP", file.path(),
                  keys("attention.head_count_kv"), keys("feed_forward_length"), i);
    if (!has_mlp && std::holds_alternative<AbsentSpec>(layer.mixer)) layer.mixer = net;
    if (auto* experts = std::get_if<ExpertMlpSpec>(&layer.mlp)) {
      experts->gated = false;
      experts->latent = keys.maybe_count("moe_latent_size").value_or(0);
    }
    if (layer.shared) {
      layer.shared->gated = false;
      layer.shared->gate = {.kind = Nonlinearity::squared_relu};
    }
  }
  never_rotate(spec);
  return spec;
}

}  // namespace quire::arch
