#include <cmath>

#include <fmt/format.h>

#include "base/error.h"
#include "model/arch/arch.h"

// Families whose layers keep a latent row for each token: DeepSeek V2, V3 and V3.2, Kimi K2, GLM 4.7 Flash and 5, Mistral 4.

namespace quire::arch {
namespace {

constexpr uint32_t kMostRank = 1u << 16;
constexpr uint64_t kMostLatentWidth = 1u << 24;  // of all heads
constexpr uint64_t kMostState = 1u << 28;        // values of all heads of a layer
constexpr uint32_t kMostSpan = 64;
constexpr uint32_t kMostChosen = 1u << 16;  // rows
constexpr float kLatentEpsilon = 1e-6f;     // whatever the model's norms have

void check_rotated(const Keys& keys) {
  if (const uint32_t rotated = keys.count("rope.dimension_count"); rotated % 2 != 0)
    throw Error("{}: {} is {}: what is rotated comes in pairs", keys.all().file_name(),
                keys("rope.dimension_count"), rotated);
}

// What a file says of its heads. Newer ones measure rows as they are cached, and heads under names of their own.
LatentSpec read_latent(const Keys& keys, const GqaSpec& said) {
  const auto refuse = [&](const char* key, uint64_t value, const std::string& why) {
    throw Error("{}: {} is {}{}", keys.all().file_name(), keys(key), value, why);
  };
  const bool is_new = keys.all().has(keys("attention.key_length_mla"));
  const char* key_name = is_new ? "attention.key_length_mla" : "attention.key_length";
  const char* value_name = is_new ? "attention.value_length_mla" : "attention.value_length";
  const uint32_t key_dim = keys.count(key_name), value_dim = keys.count(value_name);
  const uint32_t rank = keys.count("attention.kv_lora_rank"), rotated = keys.count("rope.dimension_count");
  const uint64_t query_rank = keys.all().maybe_number(keys("attention.q_lora_rank")).value_or(0);
  if (rank > kMostRank) refuse("attention.kv_lora_rank", rank, ", which no model can have");
  if (query_rank > kMostRank) refuse("attention.q_lora_rank", query_rank, ", which no model can have");
  if (rotated >= key_dim)
    refuse("rope.dimension_count", rotated, fmt::format(", of {} values of a head's key", key_dim));
  const uint64_t widest = std::max<uint64_t>({key_dim, value_dim, uint64_t(rank) + rotated});
  if (said.heads * widest > kMostLatentWidth)
    throw Error("{}: {} heads of {} are more than any model has", keys.all().file_name(), said.heads, widest);
  LatentSpec latent{.attention = said,
                    .plain_dim = key_dim - rotated,
                    .value_dim = value_dim,
                    .query_rank = uint32_t(query_rank),
                    .norm = {.epsilon = kLatentEpsilon}};
  latent.attention.kv_heads = 1;
  latent.attention.key_dim = rotated;
  latent.attention.value_dim = rank;
  latent.attention.scale = 1.0f / std::sqrt(float(key_dim));
  return latent;
}

// YaRN's growth is in the scale of scores, and not in what is rotated. The key holds a tenth of what a config says.
float yarn_growth(const Keys& keys, RopeSpec& rope) {
  const double by = keys.real("rope.scaling.yarn_log_multiplier", 0);
  const double factor = keys.real("rope.scaling.factor", 1);
  if (by == 0 || keys.all().maybe_text(keys("rope.scaling.type")).value_or("none") != "yarn") return 1;
  rope.scale = float(keys.all().maybe_real("quire.rope.attention_factor").value_or(1));
  const double growth = factor <= 1 ? 1 : by * std::log(factor) + 1;
  if (!(growth > 0 && growth < 1e3))
    throw Error("{}: {} is {}", keys.all().file_name(), keys("rope.scaling.yarn_log_multiplier"), by);
  return float(growth);
}

// Every layer's attention becomes that of latent rows.
void make_latent(const Keys& keys, ModelSpec& spec, float growth, const QueryTemperature& temperature) {
  for (LayerSpec& layer : spec.layers) {
    if (layer.attention() == nullptr) continue;
    LatentSpec latent = read_latent(keys, layer.gqa());
    latent.attention.scale *= growth * growth;
    latent.attention.temperature = temperature;
    layer.mixer = latent;
  }
}

ModelSpec latent_spec(const ModelFile& file, const SpecOptions& options) {
  const Keys keys(file);
  check_rotated(keys);
  ModelSpec spec = common_spec(file, options, {.pairing = RopePairing::interleaved});
  if (spec.ropes.size() != 1)
    throw Error("{}: layers of unequal heads with latent rows are not known", keys.all().file_name());
  const float growth = yarn_growth(keys, spec.ropes.front());
  QueryTemperature temperature{.slope = keys.real("attention.temperature_scale", 0)};
  if (temperature.slope != 0) temperature.step = keys.count("rope.scaling.original_context_length");
  make_latent(keys, spec, growth, temperature);
  return spec;
}

// Whether choices of experts have a bias, as they have where scores are sigmoids. The first files do not say which they are.
bool has_choice_bias(const ModelFile& file, const ModelSpec& spec) {
  for (size_t i = 0; i < spec.layers.size(); ++i)
    if (file.find(fmt::format("blk.{}.exp_probs_b.bias", i)) != nullptr) return true;
  return false;
}

}  // namespace

ModelSpec deepseek2_spec(const ModelFile& file, const SpecOptions& options) {
  ModelSpec spec = latent_spec(file, options);
  const RouterScore usual = has_choice_bias(file, spec) ? RouterScore::sigmoid : RouterScore::softmax;
  read_routing(file, spec, {.score = usual, .normalized = false});
  for (LayerSpec& layer : spec.layers) {
    // The groups of V2, whose scores are a softmax, are chosen by their best one.
    if (auto* experts = std::get_if<ExpertMlpSpec>(&layer.mlp);
        experts != nullptr && experts->routing.score == RouterScore::softmax)
      experts->routing.group_best = 1;
  }
  read_shared_experts(file, spec);
  return spec;
}

namespace {

constexpr const char* kIndexTypes = "attention.indexer.types";
constexpr uint32_t kLongContext = 1u << 20;  // of GLM 5.2, whose first files do not say which layers share

// Layers that take over the choice of the last one before them that has an index. One after those that a file speaks of has its own.
std::vector<bool> shared_choices(const Keys& keys, size_t layers, uint32_t context) {
  std::vector<bool> shared(layers);
  if (keys.architecture() != "glm-dsa") return shared;
  if (keys.all().has(keys(kIndexTypes))) {
    const std::vector<bool> own = keys.all().flags(keys(kIndexTypes));
    const uint64_t predicting = keys.all().maybe_number(keys("nextn_predict_layers")).value_or(0);
    if (own.size() != layers && own.size() + predicting != layers && own.size() != layers + predicting)
      throw Error("{}: {} speaks of {} layers, but there are {}", keys.all().file_name(), keys(kIndexTypes),
                  own.size(), layers);
    for (size_t i = 0; i < std::min(own.size(), layers); ++i) shared[i] = !own[i];
  } else if (context >= kLongContext) {
    for (size_t i = 2; i < layers; ++i) shared[i] = i % 4 != 2;
  }
  return shared;
}

// Layers whose tokens attend to rows that an index chooses.
ModelSpec indexed_spec(const ModelFile& file, const SpecOptions& options, RopePairing pairing) {
  ModelSpec spec = deepseek2_spec(file, options);
  const Keys keys(file);
  const auto refuse = [&](const char* key, uint64_t value, const std::string& why) {
    throw Error("{}: {} is {}{}", file.path(), keys(key), value, why);
  };
  const char* const dim_key = "attention.indexer.key_length";
  const RowIndexSpec index{.heads = keys.count("attention.indexer.head_count"),
                           .key_dim = keys.count(dim_key),
                           .most = keys.count("attention.indexer.top_k"),
                           .pairing = pairing};
  if (index.most > kMostChosen)
    refuse("attention.indexer.top_k", index.most, " rows, which no model can have");
  if (uint64_t(index.heads) * index.key_dim > kMostLatentWidth)
    refuse("attention.indexer.head_count", index.heads,
           fmt::format(", of {} values each, which no model can have", index.key_dim));
  const uint32_t rotated = keys.count("rope.dimension_count");
  if (index.key_dim % 4 != 0 || index.key_dim < rotated)
    refuse(dim_key, index.key_dim, fmt::format(": known are multiples of four, of which {} rotate", rotated));
  const std::vector<bool> shared = shared_choices(keys, spec.layers.size(), spec.context);
  RowIndexSpec* last = nullptr;
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    auto& latent = std::get<LatentSpec>(spec.layers[i].mixer);
    if (latent.query_rank == 0)
      throw Error(
          "{}: an index is made of what queries are made of, and {} is "
          "not there",
          file.path(), keys("attention.q_lora_rank"));
    latent.index = index;
    latent.index->is_shared = shared[i];
    if (!shared[i]) {
      last = &*latent.index;
    } else if (last == nullptr) {
      throw Error("{}: {}: the first layer has no choice of rows to take over", file.path(),
                  keys(kIndexTypes));
    } else {
      last->is_lent = true;
    }
  }
  return spec;
}

}  // namespace

ModelSpec deepseek32_spec(const ModelFile& file, const SpecOptions& options) {
  return indexed_spec(file, options, RopePairing::halves);
}
ModelSpec glm_dsa_spec(const ModelFile& file, const SpecOptions& options) {
  return indexed_spec(file, options, RopePairing::interleaved);
}

ModelSpec mistral4_spec(const ModelFile& file, const SpecOptions& options) {
  ModelSpec spec = latent_spec(file, options);
  read_routing(file, spec, {});
  read_shared_experts(file, spec);
  return spec;
}

// Layers with latent rows, which do not rotate, among those of Kimi delta attention.
ModelSpec kimi_linear_spec(const ModelFile& file, const SpecOptions& options) {
  const Keys keys(file);
  check_rotated(keys);
  ModelSpec spec = common_spec(file, options, {.pairing = RopePairing::interleaved}, Layers::mixed);
  make_latent(keys, spec, 1, {});
  never_rotate(spec);
  KimiDeltaSpec delta{.heads = keys.count("attention.head_count"),
                      .head_dim = keys.count("kda.head_dim"),
                      .span = keys.count("ssm.conv_kernel"),
                      .norm = spec.output_norm};
  if (delta.head_dim % 4 != 0 || uint64_t(delta.heads) * delta.head_dim * delta.head_dim > kMostState)
    throw Error("{}: {} is {}, which no model can have", file.path(), keys("kda.head_dim"), delta.head_dim);
  if (delta.span < 2 || delta.span > kMostSpan)
    throw Error("{}: {} is {}: known are convolutions over 2 to {} tokens", file.path(),
                keys("ssm.conv_kernel"), delta.span, kMostSpan);
  fill_mixers(spec, delta);
  read_routing(file, spec, {.score = RouterScore::sigmoid});
  read_shared_experts(file, spec);
  return spec;
}

}  // namespace quire::arch
