#include "base/error.h"
#include "model/arch/arch.h"

// Qwen3-Next and Qwen 3.5: layers of gated delta net, and every few an attention layer with a gate on what it gives.

namespace quire::arch {
namespace {

ModelSpec hybrid_spec(const ModelFile& file, const SpecOptions& options, KeyOrder order) {
  const Keys keys(file);
  ModelSpec spec = common_spec(file, options, {.base = 10000000.0f});
  read_shared_experts(file, spec, OutputGate::sigmoid);
  const uint64_t interval = keys.all().maybe_number(keys("full_attention_interval")).value_or(4);
  if (interval == 0)
    throw Error("{}: {} is 0: every so many layers are attention", keys.all().file_name(),
                keys("full_attention_interval"));
  // Those that predict further tokens are attention.
  const uint64_t own =
      keys.count("block_count") - keys.all().maybe_number(keys("nextn_predict_layers")).value_or(0);
  const std::vector<bool> recurrent = file.metadata().flags(keys("attention.recurrent_layers"));
  if (!recurrent.empty() && recurrent.size() < own)
    throw Error("{}: {} speaks of {} layers, but there are {}", keys.all().file_name(),
                keys("attention.recurrent_layers"), recurrent.size(), own);
  const DeltaNetSpec net = read_delta_net(file, spec, order);
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    LayerSpec& layer = spec.layers[i];
    layer.norms.mlp_tensor = "post_attention_norm";
    const bool is_recurrent = i < own && (recurrent.empty() ? (i + 1) % interval != 0 : recurrent[i]);
    if (is_recurrent) {
      layer.mixer = net;
      continue;
    }
    layer.gqa().query_key_norm = QueryKeyNorm::per_head;
    layer.gqa().output_gate = true;
  }
  return spec;
}

}  // namespace

// Files have the value heads of one key head apart: all first ones, then all second ones.
ModelSpec qwen35_spec(const ModelFile& file, const SpecOptions& options) {
  return hybrid_spec(file, options, KeyOrder::tiled);
}

ModelSpec qwen35_moe_spec(const ModelFile& file, const SpecOptions& options) {
  return qwen35_spec(file, options);
}

// Value heads of a key head are together, and so are what opens them and what lets them forget.
ModelSpec qwen3_next_spec(const ModelFile& file, const SpecOptions& options) {
  ModelSpec spec = hybrid_spec(file, options, KeyOrder::grouped);
  for (LayerSpec& layer : spec.layers) {
    if (auto* net = std::get_if<DeltaNetSpec>(&layer.mixer)) net->gates_together = true;
  }
  return spec;
}

}  // namespace quire::arch
