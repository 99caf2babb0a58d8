#pragma once

#include <string>
#include <utility>
#include <vector>

#include "model/hf_family.h"
#include "model/hf_json.h"
#include "model/metadata.h"

namespace quire {

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
  uint64_t experts = 0;  // 0: no experts
  // Of layers of gated delta net, if there are any.
  uint64_t delta_key_heads = 0, delta_value_heads = 0, delta_key_dim = 0, delta_value_dim = 0;
  uint64_t fp8_block_rows = 0;  // how far a scale of FP8 weights reaches
  uint64_t fp8_block_cols = 0;
};

// Throws Error for a model that is not supported, naming what is.
HfConfig read_hf_config(const std::string& folder);

// The parts of it.
void add_hf_rope(const HfObject& config, uint64_t head_dim, HfConfig& out);
void add_hf_window(const HfObject& config, HfConfig& out);

}  // namespace quire
