// MiniMax M3, as Transformers writes its config and as it was published.
#include <algorithm>

#include <fmt/format.h>

#include "base/error.h"
#include "model/hf_config.h"

namespace quire {
namespace {

// One bool per layer: does it choose blocks of rows?
std::vector<bool> index_layers_of(const HfObject& config, const HfObject& sparse, uint64_t layers) {
  std::vector<bool> index;
  const char* key = "layer_types";
  if (config.has(key)) {
    for (const std::string& kind : config.texts(key)) {
      index.push_back(kind == "minimax_m3_sparse");
      if (!index.back() && kind != "full_attention")
        throw Error("{}: \"{}\" has {}; known are minimax_m3_sparse and full_attention", config.where(), key,
                    in_quotes(kind));
    }
  } else if (key = "sparse_attention_freq"; sparse.has(key)) {
    for (const uint64_t one : sparse.numbers(key)) index.push_back(one != 0);
  } else {
    index.resize(layers);
  }
  if (index.size() != layers)
    throw Error("{}: \"{}\" speaks of {} layers, but there are {}", config.where(), key, index.size(),
                layers);
  return index;
}

}  // namespace

void add_hf_minimax_m3(const HfObject& config, HfConfig& out) {
  const HfObject sparse =
      config.maybe_object("sparse_attention_config").value_or(HfObject(Json::object(), config.where()));
  const std::vector<bool> index = index_layers_of(config, sparse, out.layers);
  out.metadata.set("quire.index_layers", index);
  if (std::ranges::find(index, true) == index.end()) return;
  if (sparse.maybe_number("sparse_init_block").value_or(0) != 0)
    throw Error("{}: \"sparse_init_block\" is not 0, which is not supported", sparse.where());
  if (const std::string type = sparse.maybe_text("sparse_score_type").value_or("max"); type != "max")
    throw Error("{}: \"sparse_score_type\" is {}; known is max", sparse.where(), in_quotes(type));
  struct Key {
    const char *name, *published, *gguf;
    uint64_t usual;
  };
  constexpr Key kKeys[] = {{"index_n_heads", "sparse_num_index_heads", "head_count", 4},
                           {"index_head_dim", "sparse_index_dim", "key_length", 128},
                           {"index_block_size", "sparse_block_size", "block_size", 128},
                           {"index_topk_blocks", "sparse_topk_blocks", "top_k", 16},
                           {"index_local_blocks", "sparse_local_block", "local_blocks", 1}};
  for (const Key& key : kKeys) {
    const uint64_t value = sparse.has(key.published) ? hf_count(sparse, {key.published})
                                                     : hf_count(config, {key.name}, key.usual);
    out.metadata.set(fmt::format("minimax-m3.attention.indexer.{}", key.gguf), value);
  }
}

}  // namespace quire
