#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "base/error.h"
#include "model/arch/arch.h"

namespace quire::arch {
namespace {

constexpr size_t kMostRopes = 4;
constexpr uint32_t kMaxHeadDim = 1u << 16;
constexpr uint64_t kMaxWidth = 1u << 24;  // of all heads, or of a window: no model comes near

uint32_t read_vocab(const ModelFile& file) {
  const TensorEntry* embedding = file.find("token_embd.weight");
  if (embedding == nullptr) throw Error("{}: the tensor token_embd.weight is missing", file.path());
  if (embedding->shape.size() != 2 || embedding->shape[0] == 0 || embedding->shape[0] > kMaxWidth) {
    throw Error("{}: token_embd.weight is not a matrix of vocabulary and width", file.path());
  }
  return uint32_t(embedding->shape[0]);
}

void read_attention(const ModelFile& file, ModelSpec& spec, Layers kind) {
  const Keys keys(file);
  const size_t layers = spec.layers.size();
  const bool mixed = kind == Layers::mixed;
  const auto counts = [&](const char* key) {
    return mixed ? keys.counts_or_none(key, layers) : keys.counts(key, layers);
  };
  const std::vector<uint32_t> heads = counts("attention.head_count");
  if (heads.empty() && !mixed) keys.count("attention.head_count");  // which says what is missing
  const std::vector<uint32_t> kv_heads = counts("attention.head_count_kv");
  const std::vector<uint32_t> key_dims = keys.counts("attention.key_length", layers);
  const std::vector<uint32_t> value_dims = keys.counts("attention.value_length", layers);
  for (size_t i = 0; i < layers; ++i) {
    if (mixed && (heads.empty() || heads[i] == 0 || (!kv_heads.empty() && kv_heads[i] == 0))) {
      spec.layers[i].mixer = AbsentSpec{};
      continue;
    }
    GqaSpec& gqa = spec.layers[i].gqa();
    gqa.heads = heads[i];
    gqa.kv_heads = kv_heads.empty() ? gqa.heads : kv_heads[i];
    if (gqa.heads % gqa.kv_heads != 0) {
      throw Error("{}: {} query heads cannot share {} KV heads", keys.all().file_name(), gqa.heads,
                  gqa.kv_heads);
    }
    gqa.key_dim = key_dims.empty() ? spec.dim / gqa.heads : key_dims[i];
    gqa.value_dim = value_dims.empty() ? gqa.key_dim : value_dims[i];
    if (gqa.key_dim == 0) throw Error("{}: heads of width 0", keys.all().file_name());
    if (uint64_t(gqa.heads) * std::max(gqa.key_dim, gqa.value_dim) > kMaxWidth) {
      throw Error("{}: {} heads of {} are more than any model has", keys.all().file_name(), gqa.heads,
                  std::max(gqa.key_dim, gqa.value_dim));
    }
    if (gqa.key_dim > kMaxHeadDim || gqa.value_dim > kMaxHeadDim) {
      throw Error("{}: {} and attention.value_length are {} and {}, which no model can have",
                  keys.all().file_name(), keys("attention.key_length"), gqa.key_dim, gqa.value_dim);
    }
    gqa.scale = keys.real("attention.scale", 1.0f / std::sqrt(float(gqa.key_dim)));
    gqa.norm = spec.output_norm;
  }
}

// Layers of equal heads share a rope.
void read_ropes(const ModelFile& file, ModelSpec& spec, const SpecOptions& options,
                const RopeDefaults& rope) {
  std::vector<uint32_t> dims;
  for (LayerSpec& layer : spec.layers) {
    if (std::holds_alternative<AbsentSpec>(layer.mixer)) continue;
    const uint32_t dim = layer.gqa().key_dim;
    auto known = std::ranges::find(dims, dim);
    if (known == dims.end()) {
      if (dims.size() == kMostRopes)
        throw Error("{}: attention.key_length has more than {} different widths of heads", file.path(),
                    kMostRopes);
      spec.ropes.push_back(read_rope(file, dim, options, rope));
      known = dims.insert(dims.end(), dim);
    }
    layer.gqa().rope = uint32_t(known - dims.begin());
  }
}

// Whether layer `i` is of experts, by what files say of those that are not.
bool has_experts(const Keys& keys, size_t i) {
  const uint64_t dense = keys.all().maybe_number(keys("leading_dense_block_count")).value_or(0);
  const uint64_t step = keys.all().maybe_number(keys("interleave_moe_layer_step")).value_or(1);
  return i >= dense && (step <= 1 || (i + 1) % step == 0);
}

void read_mlps(const ModelFile& file, ModelSpec& spec, Layers kind) {
  const Keys keys(file);
  const size_t layers = spec.layers.size();
  std::vector<uint32_t> widths = kind == Layers::mixed ? keys.counts_or_none("feed_forward_length", layers)
                                                       : keys.counts("feed_forward_length", layers);
  widths.resize(layers);
  const std::optional<uint32_t> experts = keys.maybe_count("expert_count");
  const std::string dense_key = "quire.dense_layers";
  const std::vector<bool> dense =
      keys.all().has(dense_key) ? keys.all().flags(dense_key) : std::vector<bool>();
  if (!dense.empty() && dense.size() != layers)
    throw Error("{}: {} speaks of {} layers, but there are {}", keys.all().file_name(), dense_key,
                dense.size(), layers);
  for (size_t i = 0; i < layers; ++i) {
    if (kind == Layers::mixed && widths[i] == 0) {
      spec.layers[i].mlp = AbsentSpec{};
      continue;
    }
    const bool mixed = experts && (dense.empty() ? has_experts(keys, i) : !dense[i]);
    if (!mixed) {
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

// DeepSeek V4's files may count layers that predict further tokens apart: then what is listed of all is more than the layers are. Where
// neither that nor a tensor tells, nobody knows.
bool counts_predictors(const ModelFile& file, const Keys& keys, uint32_t blocks) {
  const std::string key = keys("attention.compress_ratios");
  if (!keys.all().has(key)) return true;
  if (keys.all().integers(key).size() > blocks) return false;
  const std::string joins = fmt::format("blk.{}.nextn.", blocks - 1);
  if (std::ranges::none_of(file.tensors(),
                           [&](const TensorEntry& one) { return one.name.starts_with(joins); }))
    throw Error("{}: it cannot be told whether {} counts the layers that predict further tokens ({})",
                keys.all().file_name(), keys("block_count"), keys("nextn_predict_layers"));
  return true;
}

// Heads that predict further tokens come after the layers and are counted among them.
uint32_t read_layer_count(const ModelFile& file, const Keys& keys, const SpecOptions& options) {
  const uint32_t blocks = keys.count("block_count");
  const uint64_t predicting = keys.all().maybe_number(keys("nextn_predict_layers")).value_or(0);
  if (blocks > 4096) throw Error("{}: {} layers are more than any model has", keys.all().file_name(), blocks);
  if (predicting == 0 || !counts_predictors(file, keys, blocks)) return blocks;
  if (predicting >= blocks)
    throw Error("{}: {} is {}, of {} layers", keys.all().file_name(), keys("nextn_predict_layers"),
                predicting, blocks);
  return options.part == SpecOptions::Part::all ? blocks : blocks - uint32_t(predicting);
}

}  // namespace

ModelSpec common_spec(const ModelFile& file, const SpecOptions& options, const RopeDefaults& rope,
                      Layers layers) {
  const Keys keys(file);
  ModelSpec spec;
  spec.architecture = keys.architecture();
  spec.name = file.metadata().maybe_text("general.name").value_or(keys.architecture());
  spec.vocab = read_vocab(file);
  spec.dim = keys.count("embedding_length");
  spec.context = keys.count("context_length");
  spec.layers.resize(read_layer_count(file, keys, options));
  spec.output_norm.epsilon =
      keys.real("attention.layer_norm_rms_epsilon", keys.real("attention.layer_norm_epsilon", 1e-5f));
  for (LayerSpec& layer : spec.layers) layer.norms.norm = spec.output_norm;
  read_attention(file, spec, layers);
  read_mlps(file, spec, layers);
  read_routing(file, spec, {});
  read_ropes(file, spec, options, rope);
  return spec;
}

}  // namespace quire::arch
