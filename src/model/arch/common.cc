#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "model/arch/arch.h"

namespace quire::arch {
namespace {

constexpr uint64_t kMaxWidth = 1u << 24;  // of all heads, or of a window: no model comes near

uint32_t read_vocab(const ModelFile& file) {
  const TensorEntry* embedding = file.find("token_embd.weight");
  if (embedding == nullptr) throw Error("{}: the tensor token_embd.weight is missing", file.path());
  if (embedding->shape.size() != 2 || embedding->shape[0] == 0 || embedding->shape[0] > kMaxWidth) {
    throw Error("{}: token_embd.weight is not a matrix of vocabulary and width", file.path());
  }
  return uint32_t(embedding->shape[0]);
}

void read_attention(const ModelFile& file, ModelSpec& spec) {
  const Keys keys(file);
  const std::vector<uint32_t> heads = keys.counts("attention.head_count", spec.layers.size());
  if (heads.empty()) keys.count("attention.head_count");  // which says what is missing
  const std::vector<uint32_t> kv_heads = keys.counts("attention.head_count_kv", spec.layers.size());
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    GqaSpec& gqa = spec.layers[i].gqa();
    gqa.heads = heads[i];
    gqa.kv_heads = kv_heads.empty() ? gqa.heads : kv_heads[i];
    if (gqa.heads % gqa.kv_heads != 0) {
      throw Error("{}: {} query heads cannot share {} KV heads", keys.all().file_name(), gqa.heads,
                  gqa.kv_heads);
    }
    gqa.key_dim = keys.maybe_count("attention.key_length").value_or(spec.dim / gqa.heads);
    gqa.value_dim = keys.maybe_count("attention.value_length").value_or(gqa.key_dim);
    if (gqa.key_dim == 0) throw Error("{}: heads of width 0", keys.all().file_name());
    if (uint64_t(gqa.heads) * std::max(gqa.key_dim, gqa.value_dim) > kMaxWidth) {
      throw Error("{}: {} heads of {} are more than any model has", keys.all().file_name(), gqa.heads,
                  std::max(gqa.key_dim, gqa.value_dim));
    }
    gqa.scale = keys.real("attention.scale", 1.0f / std::sqrt(float(gqa.key_dim)));
    gqa.rope = 0;
    gqa.norm = spec.output_norm;
  }
}

void read_mlps(const ModelFile& file, ModelSpec& spec) {
  const Keys keys(file);
  std::vector<uint32_t> widths = keys.counts("feed_forward_length", spec.layers.size());
  widths.resize(spec.layers.size());
  const std::optional<uint32_t> experts = keys.maybe_count("expert_count");
  const uint64_t dense = keys.all().maybe_number(keys("leading_dense_block_count")).value_or(0);
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    if (!experts || i < dense) {
      spec.layers[i].mlp = DenseMlpSpec{.width = widths[i]};
      continue;
    }
    const ExpertMlpSpec mlp{.count = *experts,
                            .used = keys.count("expert_used_count"),
                            .width = keys.maybe_count("expert_feed_forward_length").value_or(widths[i])};
    if (mlp.used > mlp.count)
      throw Error("{}: {} of {} experts cannot be used", keys.all().file_name(), mlp.used, mlp.count);
    spec.layers[i].mlp = mlp;
  }
}

}  // namespace

ModelSpec common_spec(const ModelFile& file, const SpecOptions& options, const RopeDefaults& rope) {
  const Keys keys(file);
  ModelSpec spec;
  spec.architecture = keys.architecture();
  spec.name = file.metadata().maybe_text("general.name").value_or(keys.architecture());
  spec.vocab = read_vocab(file);
  spec.dim = keys.count("embedding_length");
  spec.context = keys.count("context_length");
  const uint32_t layers = keys.count("block_count");
  if (layers > 4096) throw Error("{}: {} layers are more than any model has", keys.all().file_name(), layers);
  spec.layers.resize(layers);
  spec.output_norm.epsilon =
      keys.real("attention.layer_norm_rms_epsilon", keys.real("attention.layer_norm_epsilon", 1e-5f));
  for (LayerSpec& layer : spec.layers) layer.norms.norm = spec.output_norm;
  read_attention(file, spec);
  read_mlps(file, spec);
  spec.ropes = {read_rope(file, spec.layers.front().gqa().key_dim, options, rope)};
  return spec;
}

}  // namespace quire::arch
