#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "model/arch/arch.h"

namespace quire::arch {
namespace {

constexpr uint64_t kMaxCount = 1u << 24;  // no width, head count or layer count of a real model comes near

}  // namespace

Keys::Keys(const ModelFile& file)
    : metadata_(&file.metadata()), architecture_(file.metadata().text("general.architecture")) {}

uint32_t Keys::count(const char* key) const {
  const uint64_t value = metadata_->number((*this)(key));
  if (value == 0 || value > kMaxCount) {
    throw Error("{}: {} is {}, which no model can have", metadata_->file_name(), (*this)(key), value);
  }
  return uint32_t(value);
}

std::optional<uint32_t> Keys::maybe_count(const char* key) const {
  if (!metadata_->has((*this)(key))) return std::nullopt;
  return count(key);
}

float Keys::real(const char* key, float otherwise) const {
  return float(metadata_->maybe_real((*this)(key)).value_or(otherwise));
}

ModelSpec common_spec(const ModelFile& file, const SpecOptions& options, const RopeDefaults& rope) {
  const Keys keys(file);
  const Metadata& metadata = file.metadata();
  ModelSpec spec;
  spec.architecture = keys.architecture();
  spec.name = metadata.maybe_text("general.name").value_or(keys.architecture());
  spec.dim = keys.count("embedding_length");
  spec.heads = keys.count("attention.head_count");
  // The head count may be given per layer; the layers of the models known here are all alike.
  const uint32_t layers = keys.count("block_count");
  const auto kv_heads = metadata.maybe_numbers(keys("attention.head_count_kv"), layers);
  if (kv_heads.empty()) {
    spec.kv_heads = spec.heads;
  } else {
    if (std::adjacent_find(kv_heads.begin(), kv_heads.end(), std::not_equal_to<>()) != kv_heads.end()) {
      throw Error("{}: {} differs from layer to layer, which is not supported", metadata.file_name(),
                  keys("attention.head_count_kv"));
    }
    spec.kv_heads = uint32_t(std::min<uint64_t>(kv_heads.front(), kMaxCount));
  }
  if (spec.kv_heads == 0 || spec.heads % spec.kv_heads != 0) {
    throw Error("{}: {} query heads cannot share {} KV heads", metadata.file_name(), spec.heads,
                spec.kv_heads);
  }
  spec.key_dim = keys.maybe_count("attention.key_length").value_or(spec.dim / spec.heads);
  spec.value_dim = keys.maybe_count("attention.value_length").value_or(spec.key_dim);
  if (spec.key_dim == 0) throw Error("{}: heads of width 0", metadata.file_name());
  if (uint64_t(spec.heads) * std::max(spec.key_dim, spec.value_dim) > kMaxCount) {
    throw Error("{}: {} heads of {} are more than any model has", metadata.file_name(), spec.heads,
                std::max(spec.key_dim, spec.value_dim));
  }
  spec.mlp_width = keys.maybe_count("feed_forward_length").value_or(0);
  spec.context = keys.count("context_length");
  if (layers > 4096) throw Error("{}: {} layers are more than any model has", metadata.file_name(), layers);
  spec.layers.resize(layers);
  spec.norm_epsilon =
      keys.real("attention.layer_norm_rms_epsilon", keys.real("attention.layer_norm_epsilon", 1e-5f));
  spec.attention_scale = keys.real("attention.scale", 1.0f / std::sqrt(float(spec.key_dim)));
  const TensorEntry* embedding = file.find("token_embd.weight");
  if (embedding == nullptr) throw Error("{}: the tensor token_embd.weight is missing", file.path());
  if (embedding->shape.size() != 2 || embedding->shape[0] == 0 || embedding->shape[0] > kMaxCount) {
    throw Error("{}: token_embd.weight is not a matrix of vocabulary and width", file.path());
  }
  spec.vocab = uint32_t(embedding->shape[0]);
  if (const auto experts = keys.maybe_count("expert_count")) {
    spec.experts.count = *experts;
    spec.experts.used = keys.count("expert_used_count");
    spec.experts.width = keys.maybe_count("expert_feed_forward_length").value_or(spec.mlp_width);
    if (spec.experts.used > spec.experts.count) {
      throw Error("{}: {} of {} experts cannot be used", metadata.file_name(), spec.experts.used,
                  spec.experts.count);
    }
  }
  spec.ropes = {read_rope(file, spec, options, rope)};
  for (LayerSpec& layer : spec.layers) layer.rope = 0;
  return spec;
}

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
    if (has_window[i]) spec.layers[i].window = uint32_t(std::min<uint64_t>(window, kMaxCount));
  }
}

}  // namespace quire::arch
