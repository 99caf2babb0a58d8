#include <cmath>

#include "base/error.h"
#include "model/arch/arch.h"

// Gemma 3n: streams side by side, a matrix of low rank beside attention, MLPs of which few values come through, inputs of each
// layer's own, and last layers that read others' rows.

namespace quire::arch {
namespace {

constexpr uint32_t kMaxStreams = 16;

uint32_t read_stream_count(const Keys& keys) {
  const uint32_t count = keys.count("altup.num_inputs");
  if (count < 2 || count > kMaxStreams)
    throw Error("{}: {} is {}; known are models of 2 to {} streams", keys.all().file_name(),
                keys("altup.num_inputs"), count, kMaxStreams);
  if (keys.all().maybe_number(keys("altup.active_idx")).value_or(0) != 0)
    throw Error("{}: {} is not 0, which is not supported", keys.all().file_name(), keys("altup.active_idx"));
  return count;
}

// How many standard deviations above the mean a gate is cut: by layer, minus infinity for those that keep all.
void read_spreads(const Keys& keys, ModelSpec& spec) {
  constexpr float kUsual = 1.6448536f;  // a twentieth comes through
  constexpr size_t kUsualLayers = 10;
  const std::string key = keys("activation_sparsity_scale");
  const std::vector<double> said = keys.all().reals(key);
  if (!said.empty() && said.size() != spec.layers.size())
    throw Error("{}: {} speaks of {} layers, but there are {}", keys.all().file_name(), key, said.size(),
                spec.layers.size());
  for (size_t l = 0; l < spec.layers.size(); ++l) {
    auto* mlp = std::get_if<DenseMlpSpec>(&spec.layers[l].mlp);
    if (mlp == nullptr)
      throw Error("{}: experts of the family gemma3n are not known", keys.all().file_name());
    if (said.empty() && l < kUsualLayers) mlp->spread = kUsual;
    if (!said.empty() && std::isfinite(said[l])) mlp->spread = float(said[l]);
  }
}

// No key says it.
uint32_t read_rank(const ModelFile& file) {
  constexpr uint32_t kUsual = 64, kMaxRank = 1u << 20;
  const TensorEntry* left = file.find("blk.0.laurel_l.weight");
  if (left == nullptr) return kUsual;
  if (left->shape.size() != 2 || left->shape[0] == 0 || left->shape[0] > kMaxRank)
    throw Error("{}: the tensor {} is not a matrix of few rows", file.path(), left->name);
  return uint32_t(left->shape[0]);
}

}  // namespace

ModelSpec gemma3n_spec(const ModelFile& file, const SpecOptions& options) {
  const Keys keys(file);
  ModelSpec spec = common_spec(file, options, {.base = 1000000.0f});
  spec.embedding_scale = std::sqrt(float(spec.dim));
  spec.logit_soft_cap = keys.real("final_logit_softcapping", 30);
  spec.streams = read_stream_count(keys);
  set_gate(spec, {.kind = Nonlinearity::gelu_tanh});
  set_query_key_norm(spec, QueryKeyNorm::per_head);
  read_windows(file, spec, {.window = 512, .pattern = 5});
  read_window_heads(file, spec);
  read_sharing(file, spec);
  read_layer_inputs(file, spec);
  read_spreads(keys, spec);
  if (spec.layer_inputs.width == 0)
    throw Error("{}: {} is missing", keys.all().file_name(), keys("embedding_length_per_layer_input"));
  const uint32_t rank = read_rank(file);
  for (LayerSpec& layer : spec.layers) {
    layer.norms.post = true;
    layer.gqa().scale = keys.real("attention.scale", 1);
    layer.gqa().values = Values::own_normed;
    layer.low_rank = LowRankSpec{.rank = rank, .norm = spec.output_norm};
    layer.streams = StreamsSpec{.count = spec.streams, .norm = spec.output_norm, .input = *layer.input};
    layer.input.reset();
  }
  return spec;
}

}  // namespace quire::arch
