#pragma once

#include <string_view>

#include "model/model_spec.h"

namespace quire {

BlockPtr block_of(const MixerSpec& spec, uint32_t dim);
BlockPtr block_of(const MlpSpec& spec, uint32_t dim);

// One term of the residual stream: stream += scale * post_norm(block(norm(stream))).
struct LayerBlock {
  uint32_t layer = 0;
  uint32_t file_layer = 0;  // what the file calls it
  BlockPtr block;
  NormSpec norm, after;  // before it, and after it
  BlockInput input = BlockInput::stream;
  std::string pre_norm, post_norm;  // what the file calls them; empty: there is none
  float residual_scale = 1;
  float stream_scale = 1;  // multiplies the stream once this is added
  Side side = Side::device;
  size_t first_stream = 0;  // of the layer's, which several mixers share out

  std::vector<Role> roles() const;  // the block's, by the full names of their tensors
};

// All blocks of a model, in the order in which they are computed.
std::vector<LayerBlock> layer_blocks(const ModelSpec& spec);

// A table too large to be kept: rows are read from the mapped file.
inline constexpr std::string_view kLayerTable = "per_layer_token_embd.weight";

// The norm of what the stream begins with.
inline constexpr const char* kEmbeddingNorm = "token_embd_norm";

// The weights that are the model's and no layer's.
struct ModelRoles {
  Role embedding, positions;
  std::array<Role, 2> embedding_norm;
  std::array<Role, 3> layer_inputs;  // table, matrix, norm
  std::array<Role, 2> streams;       // what makes the others of the embedding, and what they end with
  std::array<Role, 3> connection;    // of hyper-connections, how streams end: matrix, scale, base
  std::array<Role, 3>
      joining;  // of a model that joins: matrix, norm of tokens, norm of what it reads beside them
  std::array<Role, 2> output_norm;
  Role head, head_bias;
};
ModelRoles model_roles(const ModelSpec& spec);

// All that a file may have for this model, by full names: the model's, then block by block.
std::vector<Role> all_roles(const ModelSpec& spec);

// Whether the role is found in a longer tensor of this file.
bool is_part(const Role& role, const ModelFile& file);

}  // namespace quire
