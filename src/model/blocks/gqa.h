#pragma once

#include <optional>
#include <vector>

#include "model/blocks/block.h"

namespace quire {

struct NormSpec {
  NormKind kind = NormKind::rms;
  float epsilon = 1e-5f;
  bool has_weights = true;  // only of the norm of what the stream begins with may this be false
};

enum class QueryKeyNorm : uint8_t {
  none,
  per_head,
  per_head_own,         // each head has weights of its own
  per_head_weightless,  // no head has any
  whole                 // over all heads at once
};

// What attention gives may be multiplied with a gate that a matrix makes of what the layer reads: one for each value, or for each head.
enum class GateOf : uint8_t { none, values, heads };

// What is stored as a token's values: what their matrix gives, that with each head normed without weights, or so normed what the
// keys' matrix gives, which they have no other of.
enum class Values : uint8_t { own, own_normed, keys_normed };

// The blocks of rows that a KV head attends to, where a token sees more than `most`, chosen by an index that has a head for each KV head and
// keys of its own, which are a second stream of the cache. The last `local` ones are always among them.
struct BlockIndexSpec {
  uint32_t key_dim = 0;  // of which as much rotates as of the heads that attend
  uint32_t block = 0;    // rows
  uint32_t most = 0;     // blocks
  uint32_t local = 1;
  NormSpec norm = {};  // of its queries and keys
};

// Softmax attention whose query heads share KV heads in equal groups.
struct GqaSpec {
  uint32_t heads = 0;
  uint32_t kv_heads = 0;
  uint32_t key_dim = 0;  // of one head
  uint32_t value_dim = 0;
  uint32_t window = 0;                // positions a token sees, its own included; 0: all
  uint32_t chunk = 0;                 // a token sees those of its own chunk of so many alone; 0: all
  uint32_t page_tokens = 0;           // of the pages with its keys and values; 0: as many as is usual
  std::optional<uint32_t> rope = {};  // which of ModelSpec::ropes; nothing: no rotation
  float scale = 0;                    // multiplies query . key
  float soft_cap = 0;                 // 0: none
  bool sinks = false;
  // Of each head: what a score loses with every position that the key is behind (ALiBi). Empty: nothing.
  std::vector<float> slopes = {};
  QueryKeyNorm query_key_norm = QueryKeyNorm::none;
  HeadNormOrder norm_order = HeadNormOrder::before_rotation;
  NormSpec norm = {};  // of queries and keys
  QueryTemperature temperature = {};
  // Heads of the query's product are a query and a gate, side by side; what attention gives is multiplied with sigmoid(gate).
  bool output_gate = false;
  // Or the gate has a matrix of its own. REQUIRES: not both.
  GateOf own_gate = GateOf::none;
  Nonlinearity gate_function = Nonlinearity::sigmoid;  // of such a gate
  Values values = Values::own;
  // An earlier layer of the same heads and window, whose keys and values it reads: it has none of its own.
  std::optional<uint32_t> shares_with = {};
  RankPlace place = {};  // who computes which of its heads and rows
  // REQUIRES: it rotates, has keys and values of its own, and no window, chunks, slopes or gate.
  std::optional<BlockIndexSpec> blocks = {};
};

BlockPtr make_block(const GqaSpec& spec, uint32_t dim);

}  // namespace quire
