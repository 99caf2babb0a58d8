// BLOOM and MPT, whose configs have words of their own.
#include <cmath>

#include <fmt/format.h>

#include "base/error.h"
#include "model/hf_config.h"

namespace quire {
namespace {

constexpr uint64_t kMostAlibiLayers = 10000;

// What all of them have, by the names that a family has for it.
struct AlibiNames {
  const char *dim, *layers, *heads, *context;
};

void refuse_other(const HfObject& config, const char* name, bool usual) {
  if (config.maybe_flag(name).value_or(usual) != usual)
    throw Error("{}: \"{}\" is {}, which is not supported", config.where(), name, !usual);
}

void add_common(const HfObject& config, HfConfig& out, const AlibiNames& names) {
  const auto set = [&](const char* key, uint64_t value) {
    out.metadata.set(fmt::format("{}.{}", out.family->architecture, key), value);
  };
  out.embedding = hf_count(config, {names.dim, "hidden_size"});
  out.layers = hf_count(config, {names.layers, "num_hidden_layers"}, {}, kMostAlibiLayers);
  out.heads = out.kv_heads = hf_count(config, {names.heads, "num_attention_heads"});
  if (out.embedding % out.heads != 0)
    throw Error("{}: a width of {} does not divide into {} heads", config.where(), out.embedding, out.heads);
  set("block_count", out.layers);
  set("context_length", hf_count(config, {names.context}, 2048));
  set("embedding_length", out.embedding);
  set("attention.head_count", out.heads);
  const double epsilon = config.maybe_real("layer_norm_epsilon").value_or(1e-5);
  if (!(epsilon > 0) || !std::isfinite(epsilon))
    throw Error("{}: \"layer_norm_epsilon\" is {}", config.where(), epsilon);
  out.metadata.set(fmt::format("{}.attention.layer_norm_epsilon", out.family->architecture), epsilon);
}

void add_bloom(const HfObject& config, HfConfig& out) {
  refuse_other(config, "apply_residual_connection_post_layernorm", false);
  add_common(config, out, {"n_embed", "n_layer", "n_head", "seq_length"});
  out.metadata.set("bloom.feed_forward_length", 4 * out.embedding);
}

void add_mpt(const HfObject& config, HfConfig& out) {
  add_common(config, out, {"d_model", "n_layers", "n_heads", "max_seq_len"});
  const uint64_t ratio = hf_count(config, {"expansion_ratio"}, 4, 64);
  out.metadata.set("mpt.feed_forward_length", ratio * out.embedding);
  const double scale = config.maybe_real("logit_scale").value_or(1);
  if (scale != 1) throw Error("{}: \"logit_scale\" is {}, which is not supported", config.where(), scale);
  const HfObject none(Json::object(), config.where());
  const HfObject attention = config.maybe_object("attn_config").value_or(none);
  refuse_other(attention, "alibi", true);
  refuse_other(attention, "qk_ln", false);
  refuse_other(attention, "prefix_lm", false);
  if (attention.maybe_real("clip_qkv").value_or(0) != 0)
    throw Error("{}: \"clip_qkv\" is not supported", attention.where());
  if (const auto softmax = attention.maybe_real("softmax_scale"))
    out.metadata.set("mpt.attention.scale", *softmax);
  out.metadata.set("mpt.attention.max_alibi_bias", double(hf_count(attention, {"alibi_bias_max"}, 8, 1024)));
}

}  // namespace

bool is_hf_alibi(const HfFamily& family) {
  return family.architecture == "bloom" || family.architecture == "mpt";
}

void add_hf_alibi(const HfObject& config, HfConfig& out) {
  if (out.family->architecture == "bloom") return add_bloom(config, out);
  add_mpt(config, out);
}

}  // namespace quire
