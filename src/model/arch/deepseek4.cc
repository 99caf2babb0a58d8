#include <cmath>

#include <fmt/format.h>

#include "base/error.h"
#include "model/arch/arch.h"

// DeepSeek V4: rows that are key and value at once, in a window, and rows of 4 or 128 tokens beside it; several residual streams.

namespace quire::arch {
namespace {

constexpr uint64_t kMostWidth = 1u << 24;  // of all heads: no model comes near
constexpr uint32_t kMostWindow = 1u << 20;
constexpr uint32_t kMostChosenRows = 1u << 16;
constexpr uint32_t kMostStreams = 64, kMostIterations = 1000;
constexpr uint32_t kChosenStride = 4;    // of the rows that an index chooses from; they overlap
constexpr uint32_t kPlainStride = 128;   // of those that a token sees all of
constexpr uint32_t kPageOfRows = 128;    // tokens of a page with such rows
constexpr float kCompressBase = 160000;  // of their rotation, where a file does not say
enum : uint32_t { kOwnRope, kCompressRope, kChosenRope, kPlainRope };

class V4 {
 public:
  V4(const ModelFile& file, const SpecOptions& options) : file_(file), options_(options), keys_(file) {}

  ModelSpec read() {
    ModelSpec spec = common_spec(file_, options_, {.pairing = RopePairing::interleaved});
    read_ropes(spec);
    const CompressedSpec usual = read_rows(spec);
    const std::vector<uint32_t> strides = read_strides(spec.layers.size());
    for (size_t l = 0; l < spec.layers.size(); ++l) spec.layers[l].mixer = of_stride(usual, strides[l]);
    read_experts(spec);
    read_streams(spec);
    return spec;
  }

 private:
  [[noreturn]] void refuse(const char* key, uint64_t value, const std::string& why) const {
    throw Error("{}: {} is {}{}", file_.path(), keys_(key), value, why);
  }

  uint32_t at_most(const char* key, uint32_t most) const {
    const uint32_t value = keys_.count(key);
    if (value > most) refuse(key, value, ", which no model can have");
    return value;
  }

  // One of layers with a window alone, and one of the others: of the token's own position, and of that of a row's first token.
  void read_ropes(ModelSpec& spec) const {
    const uint32_t dim = spec.layers.front().gqa().key_dim;
    const uint32_t rotated = keys_.count("rope.dimension_count");
    if (rotated % 2 != 0 || rotated > dim)
      refuse("rope.dimension_count", rotated, fmt::format(", of {} values of a head", dim));
    const double base = keys_.real("rope.freq_base", 10000);
    if (!(base > 0)) throw Error("{}: {} is {}", file_.path(), keys_("rope.freq_base"), base);
    const char* const compress_key = "attention.compress_rope_freq_base";
    if (const float own = keys_.real(compress_key, kCompressBase); !(own > 0))
      throw Error("{}: {} is {}", file_.path(), keys_(compress_key), own);
    RopeSpec compressed =
        read_rope(file_, dim, options_,
                  {.pairing = RopePairing::interleaved, .base = kCompressBase, .base_key = compress_key});
    compressed.scale = float(file_.metadata().maybe_real("quire.rope.attention_factor").value_or(1));
    spec.ropes = {plain_rope(rotated, float(base), RopePairing::interleaved), compressed, compressed,
                  compressed};
    spec.ropes[kChosenRope].step = kChosenStride;
    spec.ropes[kPlainRope].step = kPlainStride;
  }

  CompressedSpec read_rows(const ModelSpec& spec) const {
    const GqaSpec& said = spec.layers.front().gqa();
    for (const LayerSpec& layer : spec.layers)
      if (layer.gqa().heads != said.heads || layer.gqa().key_dim != said.key_dim)
        throw Error("{}: layers of unequal heads are not known", file_.path());
    if (said.kv_heads != 1) refuse("attention.head_count_kv", said.kv_heads, ": known is 1");
    if (said.value_dim != said.key_dim)
      refuse("attention.value_length", said.value_dim,
             fmt::format(", and of keys there are {}: a row is both", said.key_dim));
    if (said.key_dim % 4 != 0) refuse("attention.key_length", said.key_dim, ": known are multiples of four");
    CompressedSpec rows{.heads = said.heads,
                        .head_dim = said.key_dim,
                        .query_rank = at_most("attention.q_lora_rank", 1u << 16),
                        .groups = keys_.count("attention.output_group_count"),
                        .group_rank = at_most("attention.output_lora_rank", 1u << 16),
                        .window = at_most("attention.sliding_window", kMostWindow),
                        .scale = said.scale,
                        .norm = spec.output_norm,
                        .page_tokens = kPageOfRows};
    if (rows.groups > rows.heads || rows.heads % rows.groups != 0)
      refuse("attention.output_group_count", rows.groups, fmt::format(", of {} heads", rows.heads));
    if (uint64_t(rows.groups) * rows.group_rank > kMostWidth)
      refuse("attention.output_lora_rank", rows.group_rank,
             fmt::format(", of {} groups, which no model can have", rows.groups));
    return rows;
  }

  // The list may go on to layers that predict further tokens.
  std::vector<uint32_t> read_strides(size_t layers) const {
    const char* const key = "attention.compress_ratios";
    const std::vector<int64_t> said = file_.metadata().integers(keys_(key));
    if (said.size() < layers)
      throw Error("{}: {} speaks of {} layers, but there are {}", file_.path(), keys_(key), said.size(),
                  layers);
    std::vector<uint32_t> strides;
    for (size_t l = 0; l < layers; ++l) {
      if (said[l] != 0 && said[l] != kChosenStride && said[l] != kPlainStride)
        throw Error("{}: {} has {}; known are 0, {} and {}", file_.path(), keys_(key), said[l], kChosenStride,
                    kPlainStride);
      strides.push_back(uint32_t(said[l]));
    }
    return strides;
  }

  CompressedSpec of_stride(CompressedSpec rows, uint32_t stride) const {
    rows.stride = stride;
    rows.rope = stride == 0 ? kOwnRope : kCompressRope;
    rows.row_rope = stride == kChosenStride ? kChosenRope : kPlainRope;
    if (stride != kChosenStride) return rows;
    rows.overlaps = true;
    rows.index = CompressedSpec::Index{.heads = keys_.count("attention.indexer.head_count"),
                                       .key_dim = keys_.count("attention.indexer.key_length"),
                                       .most = at_most("attention.indexer.top_k", kMostChosenRows)};
    if (uint64_t(rows.index->heads) * rows.index->key_dim > kMostWidth)
      refuse("attention.indexer.head_count", rows.index->heads,
             fmt::format(", of {} values each, which no model can have", rows.index->key_dim));
    const uint32_t rotated = keys_.count("rope.dimension_count");
    if (rows.index->key_dim % 4 != 0 || rows.index->key_dim < rotated)
      refuse("attention.indexer.key_length", rows.index->key_dim,
             fmt::format(": known are multiples of four, of which {} rotate", rotated));
    return rows;
  }

  void read_experts(ModelSpec& spec) const {
    read_routing(file_, spec, {.score = RouterScore::sqrt_softplus});
    const uint64_t hashed = file_.metadata().maybe_number(keys_("hash_layer_count")).value_or(0);
    const MetadataValue* limits = file_.metadata().find(keys_("swiglu_clamp_exp"));
    const bool of_layers = limits != nullptr && std::holds_alternative<std::vector<double>>(*limits);
    const std::vector<double> each =
        of_layers ? file_.metadata().reals(keys_("swiglu_clamp_exp")) : std::vector<double>();
    const double all = of_layers ? 0 : keys_.real("swiglu_clamp_exp", 0);
    if (of_layers && each.size() < spec.layers.size())
      throw Error("{}: {} speaks of {} layers, but there are {}", file_.path(), keys_("swiglu_clamp_exp"),
                  each.size(), spec.layers.size());
    for (size_t l = 0; l < spec.layers.size(); ++l) {
      auto* experts = std::get_if<ExpertMlpSpec>(&spec.layers[l].mlp);
      if (experts == nullptr)
        throw Error("{}: layer {} has no experts, which is not known of such models ({})", file_.path(), l,
                    keys_("expert_count"));
      const double limit = of_layers ? each[l] : all;
      if (!(limit >= 0 && limit < 1e6))
        throw Error("{}: {} is {}", file_.path(), keys_("swiglu_clamp_exp"), limit);
      if (limit > 0) experts->gate = {.kind = Nonlinearity::limited_silu, .limit = float(limit)};
      if (l >= hashed) continue;
      if (experts->routing.score == RouterScore::sparse_mixer || experts->routing.groups > 1)
        refuse("expert_group_count", experts->routing.groups, ", and experts are not chosen");
      experts->by_token = spec.vocab;
    }
    read_shared_experts(file_, spec);
  }

  void read_streams(ModelSpec& spec) const {
    spec.hyper = HyperSpec{.count = at_most("hyper_connection.count", kMostStreams),
                           .iterations = at_most("hyper_connection.sinkhorn_iterations", kMostIterations),
                           .epsilon = keys_.real("hyper_connection.epsilon", 1e-6f),
                           .norm = spec.output_norm};
    if (!(spec.hyper->epsilon >= 0 && spec.hyper->epsilon < 1))
      throw Error("{}: {} is {}", file_.path(), keys_("hyper_connection.epsilon"), spec.hyper->epsilon);
    if (uint64_t(spec.hyper->count) * spec.dim > kMostWidth)
      refuse("hyper_connection.count", spec.hyper->count, fmt::format(", of {} values each", spec.dim));
  }

  const ModelFile& file_;
  const SpecOptions& options_;
  Keys keys_;
};

}  // namespace

ModelSpec deepseek4_spec(const ModelFile& file, const SpecOptions& options) {
  if (options.part == SpecOptions::Part::all)
    throw Error("{}: layers of DeepSeek V4 that predict further tokens are not supported", file.path());
  return V4(file, options).read();
}

}  // namespace quire::arch
