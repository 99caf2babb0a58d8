#include <algorithm>

#include <fmt/format.h>

#include "base/error.h"
#include "model/hf_config.h"
#include "model/model_file.h"

namespace quire {
namespace {

constexpr uint64_t kMostLatentLayers = 10000;
constexpr uint64_t kMostLatentDim = 1 << 16;  // of a head, or of a latent

// One for each layer: has it latent rows, or a state? Layers are numbered from 1 where both kinds are listed.
std::vector<uint64_t> latent_layers(const HfObject& config, const HfObject& linear, uint64_t layers) {
  std::vector<uint64_t> latent(layers, 1);
  if (linear.has("kda_layers")) {
    for (const uint64_t layer : linear.numbers("kda_layers")) {
      if (layer == 0 || layer > layers)
        throw Error("{}: \"kda_layers\" speaks of layer {} of {}", linear.where(), layer, layers);
      latent[layer - 1] = 0;
    }
    return latent;
  }
  const std::vector<std::string> kinds = config.texts("layer_types");
  if (kinds.size() != layers)
    throw Error("{}: \"layer_types\" speaks of {} layers, but there are {}", config.where(), kinds.size(),
                layers);
  for (uint64_t i = 0; i < layers; ++i) {
    if (kinds[i] != "full_attention" && kinds[i] != "linear_attention")
      throw Error("{}: \"layer_types\" has {}; known are linear_attention and full_attention", config.where(),
                  in_quotes(kinds[i]));
    latent[i] = kinds[i] == "full_attention";
  }
  return latent;
}

bool is_indexed(const HfFamily& family) {
  return family.architecture == "deepseek32" || family.architecture == "glm-dsa";
}

// Of each layer, whether it has an index of its own or takes over the choice of one before it. Three ways of saying it; the first counts.
std::vector<bool> own_indexes(const HfObject& config, uint64_t layers) {
  std::vector<bool> own;
  const auto add = [&](const char* key, std::string_view kind) {
    if (kind != "full" && kind != "shared" && kind != "F" && kind != "S")
      throw Error("{}: \"{}\" has {}; known are full and shared", config.where(), key, in_quotes(kind));
    own.push_back(kind.starts_with('f') || kind.starts_with('F'));
  };
  const char* key = "indexer_types";
  if (config.has(key)) {
    for (const std::string& kind : config.texts(key)) add(key, kind);
  } else if (config.has("index_topk_pattern")) {
    key = "index_topk_pattern";
    if (config.is_text(key)) {
      const std::string letters = *config.maybe_text(key);
      for (const char& letter : letters) add(key, {&letter, 1});
    } else {
      for (const std::string& kind : config.texts(key)) add(key, kind);
    }
  } else {
    key = "index_topk_freq";
    const uint64_t every = std::max<uint64_t>(config.maybe_number(key).value_or(1), 1);
    const uint64_t first = config.maybe_number("index_skip_topk_offset").value_or(2);
    for (uint64_t i = 0; i < layers; ++i) own.push_back(i < first || (i + 1 - first) % every == 0);
  }
  if (own.size() != layers)
    throw Error("{}: \"{}\" speaks of {} layers, but there are {}", config.where(), key, own.size(), layers);
  if (!own.front())
    throw Error("{}: \"{}\": the first layer has no choice to take over", config.where(), key);
  return own;
}

// What chooses the rows that a token attends to.
void add_index(const HfObject& config, HfConfig& out) {
  const std::vector<bool> own = own_indexes(config, out.layers);
  if (std::ranges::count(own, false) > 0) {
    if (out.family->architecture != "glm-dsa")
      throw Error("{}: layers that share the choice of others are not supported for {}", config.where(),
                  out.family->model_type);
    out.metadata.set("glm-dsa.attention.indexer.types", own);
  }
  const auto set = [&](const char* key, uint64_t value) {
    out.metadata.set(fmt::format("{}.attention.indexer.{}", out.family->architecture, key), value);
  };
  set("head_count", hf_count(config, {"index_n_heads"}, {}, kMostLatentDim));
  set("key_length", hf_count(config, {"index_head_dim"}, {}, kMostLatentDim));
  set("top_k", hf_count(config, {"index_topk"}, {}, kMostLatentDim));
}

// Kimi Linear's other layers.
void add_delta(const HfObject& config, HfConfig& out) {
  const HfObject none(Json::object(), config.where());
  const HfObject linear = config.maybe_object("linear_attn_config").value_or(none);
  const auto set = [&](const char* key, MetadataValue value) {
    out.metadata.set(fmt::format("kimi-linear.{}", key), std::move(value));
  };
  const auto count = [&](const char* key, const char* at_top) {
    return linear.has(key) ? hf_count(linear, {key}, {}, kMostLatentDim)
                           : hf_count(config, {at_top}, {}, kMostLatentDim);
  };
  if (count("num_heads", "linear_num_heads") != out.heads)
    throw Error("{}: \"num_heads\" of the linear layers is not that of the others, {}", config.where(),
                out.heads);
  if (!config.maybe_flag("mla_use_nope").value_or(true))
    throw Error("{}: \"mla_use_nope\" is false, which is not supported", config.where());
  set("attention.head_count_kv", latent_layers(config, linear, out.layers));
  set("kda.head_dim", count("head_dim", "linear_head_dim"));
  set("ssm.conv_kernel", count("short_conv_kernel_size", "linear_conv_kernel_dim"));
}

}  // namespace

bool is_hf_latent(const HfFamily& family) {
  return family.architecture == "deepseek2" || is_indexed(family) || family.architecture == "mistral4" ||
         family.architecture == "kimi-linear";
}

void add_hf_latent(const HfObject& config, HfConfig& out) {
  const auto set = [&](const char* key, uint64_t value) {
    out.metadata.set(fmt::format("{}.{}", out.family->architecture, key), value);
  };
  const auto dim = [&](const char* key) { return hf_count(config, {key}, {}, kMostLatentDim); };
  out.embedding = hf_count(config, {"hidden_size"});
  out.layers = hf_count(config, {"num_hidden_layers"}, {}, kMostLatentLayers);
  out.heads = out.kv_heads = hf_count(config, {"num_attention_heads"}, {}, kMostLatentDim);
  out.latent_plain_dim = dim("qk_nope_head_dim");
  out.latent_value_dim = dim("v_head_dim");
  const uint64_t rank = dim("kv_lora_rank"), rotated = dim("qk_rope_head_dim");
  if (rotated % 2 != 0)
    throw Error("{}: \"qk_rope_head_dim\" is {}, and what is rotated comes in pairs", config.where(),
                rotated);
  if (!config.maybe_flag("rope_interleave").value_or(true))
    throw Error("{}: \"rope_interleave\" is false, which is not supported", config.where());
  if (hf_count(config, {"moe_layer_freq"}, 1) != 1)
    throw Error("{}: \"moe_layer_freq\" is not 1, which is not supported", config.where());
  set("block_count", out.layers);
  set("context_length", hf_count(config, {"max_position_embeddings", "model_max_length"}));
  set("embedding_length", out.embedding);
  set("feed_forward_length", hf_count(config, {"intermediate_size", "moe_intermediate_size"}));
  set("attention.head_count", out.heads);
  set("attention.head_count_kv", 1);
  set("attention.key_length", rank + rotated);
  set("attention.value_length", rank);
  set("attention.key_length_mla", out.latent_plain_dim + rotated);
  set("attention.value_length_mla", out.latent_value_dim);
  set("attention.kv_lora_rank", rank);
  if (config.has("q_lora_rank")) set("attention.q_lora_rank", dim("q_lora_rank"));
  if (out.family->architecture == "kimi-linear") {
    set("rope.dimension_count", rotated);
    return add_delta(config, out);
  }
  if (is_indexed(*out.family)) add_index(config, out);
  add_hf_rope(config, rotated, out);
}

}  // namespace quire
