#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "backend/backend.h"
#include "kv/layout/kv_formats.h"
#include "model/blocks/compressed_attention.h"
#include "model/blocks/delta_net.h"
#include "model/blocks/dense_mlp.h"
#include "model/blocks/expert_mlp.h"
#include "model/blocks/gqa.h"
#include "model/blocks/hyper_connection.h"
#include "model/blocks/kimi_delta.h"
#include "model/blocks/latent_attention.h"
#include "model/blocks/layer_input.h"
#include "model/blocks/parallel_mlp.h"
#include "model/blocks/short_convolution.h"
#include "model/blocks/state_space.h"
#include "model/blocks/streams.h"
#include "model/model_file.h"

namespace quire {

// Rotary positions as frequencies; every kind of rope scaling ends in these numbers.
struct RopeSpec {
  RopePairing pairing = RopePairing::halves;
  std::vector<float>
      inverse_frequencies;  // by pair; fewer than head_dim / 2: the rest of a head is not rotated
  float scale = 1;          // multiplies cos and sin
  uint32_t step = 1;        // positions are rounded down to multiples of it
};

// A layer may have a mixer alone, or an MLP.
struct AbsentSpec {};
BlockPtr make_block(const AbsentSpec& spec, uint32_t dim);  // that does nothing, and is asked for nothing

// What a layer is made of. A new kind of block is an alternative here and a file in blocks/; one that is nobody's but a
// test's goes in as it is.
using MixerSpec = std::variant<GqaSpec, LatentSpec, CompressedSpec, DeltaNetSpec, KimiDeltaSpec,
                               StateSpaceSpec, SelectiveScanSpec, ShortConvolutionSpec, AbsentSpec, BlockPtr>;
using MlpSpec = std::variant<DenseMlpSpec, ExpertMlpSpec, ParallelMlpSpec, AbsentSpec, BlockPtr>;

// What a block reads of the residual stream.
enum class BlockInput : uint8_t {
  stream,         // its norm, of the stream with what all blocks before added
  stream_before,  // its norm, of what the block before read: the two run side by side
  shared,         // what the block before reads, normed once for both
};

// The norms of a layer's two blocks.
struct LayerNorms {
  NormSpec norm = {};
  bool pre = true;                         // before attention and MLP
  bool post = false;                       // after them, before the residual is added
  std::optional<float> post_epsilon = {};  // of these, where it is another
  std::string mixer_tensor = "attn_norm";  // what the file calls the norm before the mixer
  std::string mlp_tensor = "ffn_norm";     // and before the MLP; empty: it has none
  BlockInput mlp_input = BlockInput::stream;
};

// Which side of the backend computes a layer's blocks: not part of the model, but decided before anything of it is loaded (place).
struct LayerSides {
  Side mixer = Side::device;
  Side mlp = Side::device;
};

struct LayerSpec {
  MixerSpec mixer = {};
  std::optional<StateSpaceSpec> beside = {};  // the mixer, reading what it reads. REQUIRES: no norms after
  MlpSpec mlp = {};
  std::optional<DenseMlpSpec> shared = {};  // beside the MLP, reading what it reads. REQUIRES: no norms after
  std::optional<LayerInputSpec> input = {};  // after them
  std::optional<LowRankSpec> low_rank =
      {};  // beside the mixer, after which the stream is divided by the root of 2
  std::optional<StreamsSpec> streams = {};  // around all of them; then `input` is theirs
  LayerNorms norms = {};
  float residual_scale = 1;  // multiplies what mixer and MLP add
  float mixer_scale = 1;     // the same of the mixer alone
  float mlp_scale = 1;       // and of the MLP and the one beside it
  float output_scale = 1;    // multiplies the stream after all of them
  LayerSides sides = {};

  // The mixer as attention sees it, or null.
  const GqaSpec* attention() const;
  // The same; throws Error if it is none.
  GqaSpec& gqa();
  const GqaSpec& gqa() const;
  uint32_t window() const;  // 0: none; of chunks, what they see at most
  bool is_recurrent() const;
};

// What a model reads for each of its layers beside the embedding: a token has a row for every layer in a table, which is read row
// by row where the file is mapped, and to it comes, normed, what a matrix makes of its embedding.
struct LayerInputs {
  uint32_t width = 0;  // of one layer's; 0: there are none
  uint32_t vocab = 0;  // of the table: further tokens have its first row
  NormSpec norm = {};
};

// An architecture as data: what differs between the models of this field, nothing else.
struct ModelSpec {
  std::string architecture;  // GGUF's name
  std::string name;

  uint32_t vocab = 0;
  uint32_t dim = 0;
  uint32_t context = 0;  // trained for

  std::vector<LayerSpec> layers;
  std::vector<RopeSpec> ropes;
  NormSpec output_norm;
  std::string output_norm_tensor = "output_norm";  // what the file calls it

  std::optional<NormSpec> embedding_norm = {};  // of what the stream begins with

  LayerInputs layer_inputs;
  uint32_t streams =
      1;  // side by side: the others are made of the embedding, and the output is of the mean of all
  std::optional<HyperSpec> hyper = {};  // several in place of the residual stream: all begin as the embedding
  // A model that predicts further tokens of another: it reads, beside each token, what that made of the token before; both are
  // normed so, and a matrix joins them. Embedding and head are the other's.
  std::optional<NormSpec> joins = {};
  uint32_t first_layer = 0;  // what the file calls its first layer
  RankPlace place = {};      // who computes which rows of the head; not part of the model (divide)

  bool learned_positions = false;
  float embedding_scale = 1;
  float logit_scale = 1;
  float logit_soft_cap = 0;
};

struct SpecOptions {
  // What of the file is meant: its layers, or also those after them, which predict further tokens.
  enum class Part : uint8_t { model, all };
  uint32_t context = 0;  // the context that will be used, where frequencies depend on it; 0: the trained one
  Part part = Part::model;
};

// Reads the spec of a file. An unknown architecture, a missing key or an absurd number throws Error naming
// it.
ModelSpec read_model_spec(const ModelFile& file, const SpecOptions& options = {});

// The first of a file's layers that predict further tokens, as a model of its own. Throws Error if it has none.
ModelSpec read_predictor_spec(const ModelFile& file, const SpecOptions& options = {});

// What the spec's layers want cached.
// Throws Error if the formats name layers that the model has not.
std::vector<KvLayer> kv_shapes(const ModelSpec& spec, const KvFormats& formats);

}  // namespace quire
