#include "model/refusal.h"

#include <optional>
#include <variant>

#include <fmt/format.h>

#include "model/layer_blocks.h"

namespace quire {
namespace {

constexpr const char* kWayOut = "use --device cpu, or leave that layer to the CPU with --gpu-layers";

using Refusal = std::optional<std::string>;

Refusal too_many(const char* what, uint64_t has, uint32_t most) {
  if (has <= most) return std::nullopt;
  return fmt::format("has {} {}, and {} are the most", has, what, most);
}

Refusal no_multiple(const char* what, uint64_t has, uint32_t of) {
  if (has % of == 0) return std::nullopt;
  return fmt::format("has {} {}, which is no multiple of {}", has, what, of);
}

Refusal of_attention(const GqaSpec& gqa, const KernelLimits& limits) {
  for (const uint32_t dim : {gqa.key_dim, gqa.value_dim}) {
    if (Refusal why = too_many("values in a head", dim, limits.head_dim)) return why;
    if (Refusal why = no_multiple("values in a head", dim, limits.head_dim_multiple)) return why;
  }
  if (gqa.output_gate && !limits.recurrent)
    return "has attention with an output gate, which is not there yet";
  if (gqa.own_gate != GateOf::none && !limits.own_gates)
    return "has attention with a gate of its own, which is not there yet";
  if (gqa.values != Values::own && !limits.norms_of_parts)
    return "has attention with normed values, which is not there yet";
  if (gqa.blocks && !limits.chosen_rows)
    return "chooses the blocks of rows that it attends to by an index, which is not there yet";
  if (gqa.chunk > 0 && !limits.chunks) return "has attention in chunks, which is not there yet";
  if (!gqa.slopes.empty() && !limits.slopes)
    return "has scores that fall with the distance (ALiBi), which are not there yet";
  if (gqa.kv_heads == 0) return std::nullopt;
  return too_many("query heads for each KV head", gqa.heads / gqa.kv_heads, limits.heads_per_kv);
}

Refusal of_latent(const LatentSpec& latent, const KernelLimits& limits) {
  if (!limits.latent_rows) return "has latent keys and values, which are not there yet";
  if (latent.index && !limits.chosen_rows)
    return "chooses the rows that it attends to by an index, which is not there yet";
  const GqaSpec& attention = latent.attention;
  for (const uint32_t dim : {attention.key_dim, attention.value_dim}) {
    if (Refusal why = too_many("values in a latent row", dim, limits.head_dim)) return why;
    if (Refusal why = no_multiple("values in a latent row", dim, limits.head_dim_multiple)) return why;
  }
  if (Refusal why =
          too_many("values in a latent row", attention.key_dim + attention.value_dim, limits.latent_dim))
    return why;
  return too_many("query heads", attention.heads, limits.latent_heads);
}

// A state of so many keys and a convolution over so many tokens; a mixer without either has 0.
Refusal of_recurrence(uint32_t keys, uint32_t span, const KernelLimits& limits) {
  if (Refusal why = too_many("keys in a state", keys, limits.state_keys)) return why;
  return too_many("tokens in a convolution", span, limits.convolution_span);
}

Refusal of_recurrent(const LayerSpec& layer, const KernelLimits& limits) {
  if (!layer.is_recurrent()) return std::nullopt;
  if (!limits.recurrent) return "is recurrent, which is not there yet";
  if (layer.beside) {
    if (Refusal why = of_recurrence(layer.beside->state_dim, layer.beside->span, limits)) return why;
  }
  if (const auto* delta = std::get_if<DeltaNetSpec>(&layer.mixer))
    return of_recurrence(delta->key_dim, delta->span, limits);
  if (const auto* kimi = std::get_if<KimiDeltaSpec>(&layer.mixer))
    return of_recurrence(kimi->head_dim, kimi->span, limits);
  if (const auto* space = std::get_if<StateSpaceSpec>(&layer.mixer))
    return of_recurrence(space->state_dim, space->span, limits);
  if (const auto* scan = std::get_if<SelectiveScanSpec>(&layer.mixer))
    return of_recurrence(scan->state_dim, scan->span, limits);
  if (const auto* convolution = std::get_if<ShortConvolutionSpec>(&layer.mixer))
    return of_recurrence(0, convolution->span, limits);
  return std::nullopt;
}

// Of what has an up beside it.
Refusal of_gate(bool gated, const Gate& gate, const KernelLimits& limits) {
  const bool usual = gate.kind == Nonlinearity::silu || gate.kind == Nonlinearity::gelu_tanh ||
                     gate.kind == Nonlinearity::gelu_erf || gate.kind == Nonlinearity::clamped_swiglu;
  if (!gated || usual || limits.all_gates) return std::nullopt;
  return "has gates with an unusual nonlinearity, which are not there yet";
}

Refusal of_experts(const ExpertMlpSpec& experts, const KernelLimits& limits) {
  if (Refusal why = too_many("experts", experts.count, limits.experts)) return why;
  if (Refusal why = too_many("experts for each token", experts.used, limits.experts_used)) return why;
  if (experts.by_token > 0 && !limits.experts_by_token)
    return "has experts that a token's number names, which are not there yet";
  if (experts.share_use == ShareUse::of_inputs && !limits.scaled_inputs)
    return "has experts with scaled inputs, which are not there yet";
  if ((!experts.gated || experts.gate.kind == Nonlinearity::squared_relu) && !limits.plain_experts)
    return "has experts without a gate, which are not there yet";
  if (Refusal why = of_gate(experts.gated, experts.gate, limits)) return why;
  return no_multiple("values in the hidden layer of an expert", experts.width, limits.expert_width_multiple);
}

Refusal of_dense(const DenseMlpSpec& dense, const KernelLimits& limits) {
  if (dense.gate.kind == Nonlinearity::squared_relu && !limits.plain_experts)
    return "has an MLP with a squared ReLU, which is not there yet";
  return of_gate(dense.gated, dense.gate, limits);
}

Refusal of_mlp(const MlpSpec& mlp, const KernelLimits& limits) {
  if (const auto* experts = std::get_if<ExpertMlpSpec>(&mlp)) return of_experts(*experts, limits);
  if (const auto* dense = std::get_if<DenseMlpSpec>(&mlp)) return of_dense(*dense, limits);
  const auto* both = std::get_if<ParallelMlpSpec>(&mlp);
  if (both == nullptr) return std::nullopt;
  if (Refusal why = of_dense(both->dense, limits)) return why;
  return of_experts(both->experts, limits);
}

Refusal of_sums(const LayerSpec& layer, const KernelLimits& limits) {
  if (layer.output_scale != 1 && layer.sides.mlp == Side::device && !limits.scaled_stream)
    return "leaves the stream times a factor, which is not there yet";
  if (std::holds_alternative<ParallelMlpSpec>(layer.mlp) && layer.sides.mlp == Side::device &&
      !limits.scaled_shares)
    return "has experts with factors beside an MLP, which are not there yet";
  return std::nullopt;
}

// Experts whose gate and up, which meet, are of two types.
Refusal of_types(const ModelFile& file, const LayerBlock& block, const KernelLimits& limits) {
  const std::vector<Role> roles = block.roles();
  for (size_t i = 0; i + 1 < roles.size() && !limits.mixed_experts; ++i) {
    const TensorEntry *gate = file.find(roles[i].tensor), *up = file.find(roles[i + 1].tensor);
    if (!roles[i].meets_next || roles[i].stacked() == 1 || gate == nullptr || up == nullptr) continue;
    if (gate->dtype != up->dtype)
      return fmt::format("has experts whose gates are {} and whose ups are {}, and they must be of one type",
                         traits(gate->dtype).name, traits(up->dtype).name);
  }
  return std::nullopt;
}

}  // namespace

std::string refusal_of(const ModelFile& file, const ModelSpec& spec, const BackendTraits& device) {
  const KernelLimits& limits = device.limits;
  const auto sentence = [&](const std::string& who, const std::string& why, const char* way_out) {
    return fmt::format("{}: {} {} for the kernels of {}; {}", file.path(), who, why, device.device, way_out);
  };
  if (const Refusal why = no_multiple("values in a row", spec.dim, limits.dim_multiple))
    return sentence("the model", *why, "use --device cpu");
  if (const Refusal why = too_many("tokens in its vocabulary", spec.vocab, limits.vocabulary))
    return sentence("the model", *why, "use --device cpu");
  if (spec.layer_inputs.width > 0 && !limits.norms_of_parts)
    return sentence("the model", "has inputs for each layer, which are not there yet", "use --device cpu");
  if (spec.streams > 1 && !limits.side_streams)
    return sentence("the model", "has streams side by side, which are not there yet", "use --device cpu");
  if (spec.hyper && !limits.side_streams)
    return sentence("the model", "has several residual streams (hyper-connections), which are not there yet",
                    "use --device cpu");
  for (size_t l = 0; l < spec.layers.size(); ++l) {
    const LayerSpec& layer = spec.layers[l];
    if (layer.sides.mixer == Side::device) {
      if (const Refusal why = of_recurrent(layer, limits))
        return sentence(fmt::format("layer {}", l), *why, "use --device cpu");
    }
    if (const auto* latent = std::get_if<LatentSpec>(&layer.mixer);
        latent != nullptr && layer.sides.mixer == Side::device) {
      if (const Refusal why = of_latent(*latent, limits))
        return sentence(fmt::format("layer {}", l), *why, "use --device cpu");
    }
    if (std::holds_alternative<CompressedSpec>(layer.mixer) && layer.sides.mixer == Side::device &&
        !limits.compressed_rows)
      return sentence(fmt::format("layer {}", l), "attends to rows of several tokens, which is not there yet",
                      "use --device cpu");
    Refusal why;
    if (const auto* gqa = std::get_if<GqaSpec>(&layer.mixer);
        gqa != nullptr && layer.sides.mixer == Side::device)
      why = of_attention(*gqa, limits);
    if (!why && layer.sides.mlp == Side::device) why = of_mlp(layer.mlp, limits);
    if (!why && layer.shared && layer.sides.mlp == Side::device) why = of_dense(*layer.shared, limits);
    if (!why) why = of_sums(layer, limits);
    if (why) return sentence(fmt::format("layer {}", l), *why, kWayOut);
  }
  for (const LayerBlock& block : layer_blocks(spec)) {
    if (block.side != Side::device) continue;
    if (const Refusal why = of_types(file, block, limits))
      return sentence(fmt::format("layer {}", block.layer), *why, kWayOut);
  }
  return "";
}

}  // namespace quire
