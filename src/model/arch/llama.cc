#include "base/error.h"
#include "model/arch/arch.h"

namespace quire::arch {

// Llama, Mistral and Mixtral. Rows of q and k are stored so that neighbouring values form a pair.
ModelSpec llama_spec(const ModelFile& file, const SpecOptions& options) {
  ModelSpec spec = common_spec(file, options, {.pairing = RopePairing::interleaved});
  read_windows(file, spec, {});
  return spec;
}

void read_granite_scales(const ModelFile& file, ModelSpec& spec) {
  const Keys keys(file);
  spec.embedding_scale = keys.real("embedding_scale", 1);
  for (LayerSpec& layer : spec.layers) layer.residual_scale = keys.real("residual_scale", 1);
  spec.logit_scale = 1.0f / keys.real("logit_scale", 1);
}

ModelSpec granite_spec(const ModelFile& file, const SpecOptions& options) {
  ModelSpec spec = llama_spec(file, options);
  read_granite_scales(file, spec);
  return spec;
}

// Softmax of those that are chosen, and softmax of all made to sum to 1, are the same.
ModelSpec granite_moe_spec(const ModelFile& file, const SpecOptions& options) {
  ModelSpec spec = granite_spec(file, options);
  read_shared_experts(file, spec);
  return spec;
}

// Ministral 3: queries grow with every so many positions.
ModelSpec mistral3_spec(const ModelFile& file, const SpecOptions& options) {
  const Keys keys(file);
  ModelSpec spec = llama_spec(file, options);
  const float slope = keys.real("attention.temperature_scale", 0);
  if (slope == 0) return spec;
  const uint32_t step = keys.count("rope.scaling.original_context_length");
  for (LayerSpec& layer : spec.layers) layer.gqa().temperature = {.slope = slope, .step = step};
  return spec;
}

ModelSpec ernie4_5_spec(const ModelFile& file, const SpecOptions& options) {
  return common_spec(file, options, {.pairing = RopePairing::interleaved, .base = 500000.0f});
}

ModelSpec ernie4_5_moe_spec(const ModelFile& file, const SpecOptions& options) {
  ModelSpec spec = ernie4_5_spec(file, options);
  read_shared_experts(file, spec);
  return spec;
}

// Three layers of four see chunks and rotate; the others see everything, and their queries grow with the position.
ModelSpec llama4_spec(const ModelFile& file, const SpecOptions& options) {
  const Keys keys(file);
  ModelSpec spec = common_spec(file, options, {.pairing = RopePairing::interleaved, .base = 500000.0f});
  const uint32_t chunk = keys.maybe_count("attention.chunk_size").value_or(8192);
  const QueryTemperature temperature{.slope = keys.real("attention.temperature_scale", 0.1f),
                                     .step = keys.maybe_count("attention.temperature_length").value_or(8192),
                                     .offset = 1};
  const std::vector<bool> rotated = file.metadata().flags("quire.rope_pattern");
  // Of the published ones, that of 128 experts has none.
  const bool normed =
      file.metadata().maybe_flag("quire.query_key_norm").value_or(keys.maybe_count("expert_count") != 128u);
  if (!rotated.empty() && rotated.size() != spec.layers.size())
    throw Error("{}: quire.rope_pattern speaks of {} layers, but there are {}", file.path(), rotated.size(),
                spec.layers.size());
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    GqaSpec& gqa = spec.layers[i].gqa();
    const bool rotates = rotated.empty() ? (i + 1) % 4 != 0 : rotated[i];
    if (rotates) {
      gqa.chunk = chunk;
      if (normed) gqa.query_key_norm = QueryKeyNorm::per_head_weightless;
    } else {
      gqa.rope.reset();
      gqa.temperature = temperature;
    }
    if (auto* experts = std::get_if<ExpertMlpSpec>(&spec.layers[i].mlp))
      experts->share_use = ShareUse::of_inputs;
  }
  read_routing(file, spec, {.score = RouterScore::sigmoid, .normalized = false});
  read_shared_experts(file, spec);
  return spec;
}

ModelSpec smollm3_spec(const ModelFile& file, const SpecOptions& options) {
  ModelSpec spec = llama_spec(file, options);
  const std::vector<bool> rotated = file.metadata().flags("smollm3.attention.rope_pattern");
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const bool rotates = i < rotated.size() ? rotated[i] : (i + 1) % 4 != 0;
    if (!rotates) spec.layers[i].gqa().rope.reset();
  }
  return spec;
}

}  // namespace quire::arch
