#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "kv/kv_formats.h"
#include "model/model_file.h"

namespace quire {

// Rotary positions as frequencies; every kind of rope scaling ends in these numbers.
struct RopeSpec {
  RopePairing pairing = RopePairing::halves;
  std::vector<float>
      inverse_frequencies;  // by pair; fewer than head_dim / 2: the rest of a head is not rotated
  float scale = 1;          // multiplies cos and sin
};

struct LayerSpec {
  uint32_t window = 0;           // positions a token sees, its own included; 0: all
  std::optional<uint32_t> rope;  // which of ModelSpec::ropes; nothing: no rotation
};

enum class QueryKeyNorm : uint8_t { none, per_head, whole };  // whole: over all heads at once

struct ExpertSpec {
  uint32_t count = 0;  // 0: a dense model
  uint32_t used = 0;
  uint32_t width = 0;
  Routing routing = Routing::softmax_then_top_normalized;
};

// An architecture as data: what differs between the models of this field, nothing else.
struct ModelSpec {
  std::string architecture;  // GGUF's name
  std::string name;

  uint32_t vocab = 0;
  uint32_t dim = 0;
  uint32_t heads = 0;
  uint32_t kv_heads = 0;
  uint32_t key_dim = 0;  // of one head
  uint32_t value_dim = 0;
  uint32_t mlp_width = 0;
  uint32_t context = 0;  // trained for

  std::vector<LayerSpec> layers;
  std::vector<RopeSpec> ropes;
  ExpertSpec experts;

  NormKind norm = NormKind::rms;
  float norm_epsilon = 1e-5f;
  bool pre_norms = true;                     // before attention and MLP
  bool post_norms = false;                   // after them, before the residual is added
  std::string mlp_norm_tensor = "ffn_norm";  // what the file calls the norm before the MLP
  QueryKeyNorm query_key_norm = QueryKeyNorm::none;
  bool learned_positions = false;
  bool attention_sinks = false;
  Gate gate;
  bool gated_mlp = true;

  float embedding_scale = 1;
  float residual_scale = 1;   // multiplies what attention and MLP add
  float attention_scale = 0;  // multiplies query . key
  float attention_soft_cap = 0;
  float logit_scale = 1;
  float logit_soft_cap = 0;
};

struct SpecOptions {
  uint32_t context = 0;  // the context that will be used, where frequencies depend on it; 0: the trained one
};

// Reads the spec of a file. An unknown architecture, a missing key or an absurd number throws Error naming
// it.
ModelSpec read_model_spec(const ModelFile& file, const SpecOptions& options = {});

// What the spec's layers want cached.
// Throws Error if the formats name layers that the model has not.
std::vector<KvLayerShape> kv_shapes(const ModelSpec& spec, const KvFormats& formats);

}  // namespace quire
