#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "model/arch/arch.h"

// Families that are one file each elsewhere and a few lines here.

namespace quire::arch {

// And Hunyuan 3.
ModelSpec dots1_spec(const ModelFile& file, const SpecOptions& options) {
  ModelSpec spec = common_spec(file, options, {});
  set_query_key_norm(spec, QueryKeyNorm::per_head);
  read_routing(file, spec, {.score = RouterScore::sigmoid});
  read_shared_experts(file, spec);
  return spec;
}

// Hunyuan, dense and of experts. Queries and keys are normed after they are rotated.
ModelSpec hunyuan_spec(const ModelFile& file, const SpecOptions& options) {
  ModelSpec spec = common_spec(file, options, {});
  set_query_key_norm(spec, QueryKeyNorm::per_head);
  for (LayerSpec& layer : spec.layers) layer.gqa().norm_order = HeadNormOrder::after_rotation;
  read_shared_experts(file, spec);
  return spec;
}

ModelSpec seed_oss_spec(const ModelFile& file, const SpecOptions& options) {
  ModelSpec spec = common_spec(file, options, {});  // its biases are in the file
  for (LayerSpec& layer : spec.layers) layer.norms.mlp_tensor = "post_attention_norm";
  return spec;
}

ModelSpec apertus_spec(const ModelFile& file, const SpecOptions& options) {
  const Metadata& metadata = file.metadata();
  ModelSpec spec = common_spec(file, options, {.base = 12000000.0f});
  set_query_key_norm(spec, QueryKeyNorm::per_head);
  use_plain_mlps(spec, Nonlinearity::xielu);
  const auto list = [&](const char* key) {
    std::vector<double> values = metadata.reals(key);
    if (values.size() != spec.layers.size())
      throw Error("{}: {} has {} values for {} layers", file.path(), key, values.size(), spec.layers.size());
    return values;
  };
  const std::vector<double> rise = list("xielu.alpha_p"), fall = list("xielu.alpha_n");
  const std::vector<double> slope = list("xielu.beta");
  const auto softplus = [](double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x))); };
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    auto* mlp = std::get_if<DenseMlpSpec>(&spec.layers[i].mlp);
    if (mlp == nullptr) throw Error("{}: experts of the family apertus are not known", file.path());
    if (slope[i] != 0.5)
      throw Error("{}: xielu.beta is {} in layer {}; every model has 0.5", file.path(), slope[i], i);
    mlp->gate.limit = float(softplus(rise[i]));
    mlp->gate.slope = float(slope[i] + softplus(fall[i]));
  }
  return spec;
}

// Command R. Attention and MLP read the same rows; norms have no bias.
ModelSpec command_r_spec(const ModelFile& file, const SpecOptions& options) {
  ModelSpec spec = common_spec(file, options, {.pairing = RopePairing::interleaved, .base = 500000.0f});
  use_layer_norms(spec);
  maybe_query_key_norm(file, spec, QueryKeyNorm::per_head_own);
  for (LayerSpec& layer : spec.layers) layer.norms.mlp_input = BlockInput::shared;
  spec.logit_scale = Keys(file).real("logit_scale", 1);
  return spec;
}

ModelSpec cohere2_spec(const ModelFile& file, const SpecOptions& options) {
  ModelSpec spec = command_r_spec(file, options);
  read_windows(file, spec, {.window = 4096, .pattern = 4});
  rotate_windows_only(spec);
  return spec;
}

// What comes of the chosen experts and of those that every token takes part in is averaged. Dense layers before them rotate.
ModelSpec cohere2_moe_spec(const ModelFile& file, const SpecOptions& options) {
  const Keys keys(file);
  ModelSpec spec = cohere2_spec(file, options);
  const bool rms = keys.all().has(keys("attention.layer_norm_rms_epsilon"));
  if (rms) spec.output_norm.kind = NormKind::rms;
  read_routing(file, spec, {.score = RouterScore::sigmoid});
  read_shared_experts(file, spec);
  for (LayerSpec& layer : spec.layers) {
    if (rms) layer.norms.norm.kind = NormKind::rms;
    if (std::holds_alternative<DenseMlpSpec>(layer.mlp)) layer.gqa().rope = 0;
    if (layer.shared) layer.mlp_scale = 0.5f;
  }
  return spec;
}

}  // namespace quire::arch
