#include <fmt/format.h>

#include "base/error.h"
#include "model/arch/arch.h"

namespace quire::arch {
namespace {

constexpr uint32_t kMostBlock = 1u << 20, kMostBlocks = 1u << 16;
constexpr uint64_t kMostKeysOfBlocks = 1u << 24;  // of all heads of an index: no model comes near

// MiniMax M3: which layers choose blocks. Files that do not say mean those with experts.
std::vector<bool> read_index_layers(const ModelFile& file, const ModelSpec& spec) {
  const char* const key = "quire.index_layers";
  std::vector<bool> layers;
  if (file.metadata().has(key)) {
    layers = file.metadata().flags(key);
  } else {
    for (const LayerSpec& layer : spec.layers)
      layers.push_back(std::holds_alternative<ExpertMlpSpec>(layer.mlp));
  }
  if (layers.size() != spec.layers.size())
    throw Error("{}: {} speaks of {} layers, but there are {}", file.path(), key, layers.size(),
                spec.layers.size());
  return layers;
}

BlockIndexSpec read_block_index(const ModelFile& file, const GqaSpec& gqa, const RopeSpec& rope) {
  const Keys keys(file);
  const auto refuse = [&](const char* key, uint64_t value, const std::string& why) {
    throw Error("{}: {} is {}{}", file.path(), keys(key), value, why);
  };
  BlockIndexSpec index{.key_dim = keys.count("attention.indexer.key_length"),
                       .block = keys.count("attention.indexer.block_size"),
                       .most = keys.count("attention.indexer.top_k"),
                       .local = keys.count("attention.indexer.local_blocks"),
                       .norm = gqa.norm};
  if (const uint32_t heads = keys.count("attention.indexer.head_count"); heads != gqa.kv_heads)
    refuse("attention.indexer.head_count", heads, fmt::format(", and there are {} KV heads", gqa.kv_heads));
  if (index.key_dim % 4 != 0 || index.key_dim < 2 * rope.inverse_frequencies.size())
    refuse("attention.indexer.key_length", index.key_dim,
           fmt::format(": known are multiples of four, of which {} rotate",
                       2 * rope.inverse_frequencies.size()));
  if (uint64_t(gqa.kv_heads) * index.key_dim > kMostKeysOfBlocks)
    refuse("attention.indexer.key_length", index.key_dim, ", which no model can have");
  if (index.block % kPageTokens != 0 || index.block > kMostBlock)
    refuse("attention.indexer.block_size", index.block,
           fmt::format(": known are multiples of {}", kPageTokens));
  if (index.most > kMostBlocks)
    refuse("attention.indexer.top_k", index.most, " blocks, which no model can have");
  if (index.local > index.most)
    refuse("attention.indexer.local_blocks", index.local, fmt::format(", of {} blocks", index.most));
  return index;
}

}  // namespace

ModelSpec minimax_m2_spec(const ModelFile& file, const SpecOptions& options) {
  ModelSpec spec = common_spec(file, options, {.base = 5000000.0f});
  set_query_key_norm(spec, QueryKeyNorm::whole);
  read_routing(file, spec, {.score = RouterScore::sigmoid});
  return spec;
}

ModelSpec minimax_m3_spec(const ModelFile& file, const SpecOptions& options) {
  ModelSpec spec = common_spec(file, options, {.base = 5000000.0f});
  set_query_key_norm(spec, QueryKeyNorm::per_head);
  read_routing(file, spec, {.score = RouterScore::sigmoid});
  Gate gate{.kind = Nonlinearity::clamped_swiglu};
  gate.limit = float(file.metadata().maybe_real("quire.swiglu_limit").value_or(gate.limit));
  gate.slope = float(file.metadata().maybe_real("quire.swiglu_alpha").value_or(gate.slope));
  set_gate(spec, gate);
  read_shared_experts(file, spec);
  const std::vector<bool> chooses = read_index_layers(file, spec);
  for (size_t l = 0; l < spec.layers.size(); ++l) {
    GqaSpec& gqa = spec.layers[l].gqa();
    if (chooses[l]) gqa.blocks = read_block_index(file, gqa, spec.ropes[*gqa.rope]);
  }
  return spec;
}

}  // namespace quire::arch
