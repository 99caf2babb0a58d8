#include <algorithm>

#include "base/error.h"
#include "model/arch/arch.h"

namespace quire::arch {

constexpr uint64_t kMaxWindow = 1u << 24;  // in positions: no model comes near

void read_windows(const ModelFile& file, ModelSpec& spec, const WindowDefaults& usual) {
  const Keys keys(file);
  const Metadata& metadata = file.metadata();
  const uint64_t window = metadata.maybe_number(keys("attention.sliding_window")).value_or(usual.window);
  if (window == 0) return;
  std::vector<bool> has_window(spec.layers.size());
  const std::string pattern_key = keys("attention.sliding_window_pattern");
  const MetadataValue* said = metadata.find(pattern_key);
  if (said != nullptr && std::holds_alternative<std::vector<bool>>(*said)) {
    has_window = metadata.flags(pattern_key);
    if (has_window.size() != spec.layers.size()) {
      throw Error("{}: {} speaks of {} layers, but there are {}", metadata.file_name(), pattern_key,
                  has_window.size(), spec.layers.size());
    }
  } else {
    const uint64_t pattern = said != nullptr ? metadata.number(pattern_key) : usual.pattern;
    for (size_t i = 0; i < has_window.size(); ++i) has_window[i] = pattern == 0 || (i + 1) % pattern != 0;
  }
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    if (has_window[i]) spec.layers[i].gqa().window = uint32_t(std::min<uint64_t>(window, kMaxWindow));
  }
}

void set_gate(ModelSpec& spec, const Gate& gate) {
  for (LayerSpec& layer : spec.layers) {
    if (auto* dense = std::get_if<DenseMlpSpec>(&layer.mlp)) dense->gate = gate;
    if (auto* experts = std::get_if<ExpertMlpSpec>(&layer.mlp)) experts->gate = gate;
  }
}

void use_layer_norms(ModelSpec& spec) {
  spec.output_norm.kind = NormKind::layer;
  for (LayerSpec& layer : spec.layers) layer.norms.norm.kind = layer.gqa().norm.kind = NormKind::layer;
}

void use_plain_mlps(ModelSpec& spec, Nonlinearity function) {
  set_gate(spec, {.kind = function});
  for (LayerSpec& layer : spec.layers) {
    if (auto* mlp = std::get_if<DenseMlpSpec>(&layer.mlp)) mlp->gated = false;
  }
}

void set_query_key_norm(ModelSpec& spec, QueryKeyNorm norm) {
  for (LayerSpec& layer : spec.layers) layer.gqa().query_key_norm = norm;
}

void maybe_query_key_norm(const ModelFile& file, ModelSpec& spec, QueryKeyNorm norm) {
  if (file.find("blk.0.attn_q_norm.weight") != nullptr) set_query_key_norm(spec, norm);
}

void use_post_norms(ModelSpec& spec) {
  for (LayerSpec& layer : spec.layers) {
    layer.norms.pre = false;
    layer.norms.post = true;
  }
}

void rotate_windows_only(ModelSpec& spec) {
  for (LayerSpec& layer : spec.layers) {
    if (layer.window() == 0) layer.gqa().rope.reset();
  }
}

}  // namespace quire::arch
