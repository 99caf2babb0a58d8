#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/hf_family.h"
#include "model/hf_json.h"
#include "model/hf_schemes.h"
#include "model/metadata.h"
#include "model/safetensors.h"

namespace quire {

// Rows that follow each other, and what multiplies them.
struct HfFactor {
  uint64_t rows = 0;  // 0: all there are
  float factor = 1;
};

// A folder's config.json and generation_config.json in GGUF's words.
struct HfConfig {
  const HfFamily* family = nullptr;
  Metadata metadata;
  // Tensors that a GGUF file has and a folder computes: rope_freqs.weight, rope_factors_{long,short}.weight.
  std::vector<std::pair<std::string, std::vector<float>>> computed_tensors;

  bool tied = false;
  uint64_t layers = 0;
  uint64_t heads = 0;
  uint64_t kv_heads = 0;
  uint64_t embedding = 0;
  uint64_t experts = 0;  // 0: no experts
  uint64_t expert_width = 0;
  uint64_t streams = 0;      // side by side; 0: there is one
  uint64_t more_layers = 0;  // that follow in the file and are not used: they predict further tokens
  // Of layers of gated delta net, if there are any.
  uint64_t delta_key_heads = 0, delta_value_heads = 0, delta_key_dim = 0, delta_value_dim = 0;
  bool delta_tiled = false;  // GGUF has the value heads of a key head apart
  // Of layers with latent rows, if there are any: of a head's key what is not rotated, and of its value.
  uint64_t latent_plain_dim = 0, latent_value_dim = 0;
  uint64_t state_groups = 0;  // of heads in layers of Mamba-2; 0: there are none
  // What a config multiplies results with, GGUF has in the matrices: by their names, or from a dot on the ends of them, so many rows each.
  std::vector<std::pair<std::string, std::vector<HfFactor>>> factors;
  uint64_t fp8_block_rows = 0;  // how far a scale of FP8 weights reaches
  uint64_t fp8_block_cols = 0;
  HfQuantization quantization = {};
};

// Throws Error for a model that is not supported, naming what is.
HfConfig read_hf_config(const std::string& folder);
// The same of what a config.json says alone; `name` becomes the model's.
HfConfig convert_hf_config(HfObject config, const std::string& name);

// The parts of it.
void add_hf_rope(const HfObject& config, uint64_t head_dim, HfConfig& out);
// All of Gemma 4 that is not said by other families in the same words, rope and windows too.
void add_hf_gemma4(const HfObject& config, uint64_t head_dim, HfConfig& out);
// The measures of latent rows and of the heads that read them, and their rope.
bool is_hf_latent(const HfFamily& family);
void add_hf_latent(const HfObject& config, HfConfig& out);
// All of DeepSeek V4 but its experts, and what they have that others have not.
bool is_hf_compressed(const HfFamily& family);
void add_hf_compressed(const HfObject& config, HfConfig& out);
void add_hf_compressed_routing(const HfObject& config, HfConfig& out);
// What Gemma 3n has that others have not, once all else is said.
void add_hf_gemma3n(const HfObject& config, HfConfig& out);
void add_hf_window(const HfObject& config, HfConfig& out);
void add_hf_experts(const HfObject& config, HfConfig& out);
// What MiMo-V2-Flash has that others have not, once all else is said.
void add_hf_mimo(const HfObject& config, HfConfig& out);
// Of MiniMax M3: which layers choose blocks of rows, and how.
void add_hf_minimax_m3(const HfObject& config, HfConfig& out);
// What Laguna and Muse Glimmer have that others have not, once all else is said.
void add_hf_laguna(const HfObject& config, uint64_t head_dim, HfConfig& out);
void add_hf_muse_glimmer(const HfObject& config, uint64_t head_dim, HfConfig& out);
// What Falcon-H1 has that others have not, once all else is said.
void add_hf_falcon_h1(const HfObject& config, HfConfig& out);
// All of BLOOM's or MPT's.
bool is_hf_alibi(const HfFamily& family);
void add_hf_alibi(const HfObject& config, HfConfig& out);
// All of a hybrid's, whose layers are of several kinds.
bool is_hf_hybrid(const HfFamily& family);
void add_hf_hybrid(const HfObject& config, HfConfig& out);
bool has_hf_experts(const HfObject& config);  // in any layer of a Nemotron-H
// What the config and GGUF have no tensor for, and the folder has: numbers of an activation function.
void add_hf_values(const SafetensorsFolder& files, HfConfig& out);
// How a text becomes one vector, if the folder is sentence-transformers': ARCH.pooling_type.
void add_hf_pooling(const std::string& folder, HfConfig& out);

// A number by the first of these names that the config has. Throws Error if it is 0 or absurd, or there is none and nothing is usual.
uint64_t hf_count(const HfObject& config, std::initializer_list<const char*> names,
                  std::optional<uint64_t> usual = {}, uint64_t most = 1 << 24);

}  // namespace quire
