#pragma once

#include <string>

#include "model/model_spec.h"

namespace quire::arch {

// One architecture's keys, with its prefix: keys("rope.freq_base") is "llama.rope.freq_base".
class Keys {
 public:
  explicit Keys(const ModelFile& file);

  const Metadata& all() const { return *metadata_; }
  std::string operator()(const char* key) const { return architecture_ + "." + key; }
  const std::string& architecture() const { return architecture_; }

  uint32_t count(const char* key) const;  // at least 1 and within what a model can be
  std::optional<uint32_t> maybe_count(const char* key) const;
  // What a file may say once or per layer, for each; empty if it does not.
  std::vector<uint32_t> counts(const char* key, size_t layers) const;
  float real(const char* key, float otherwise) const;

 private:
  const Metadata* metadata_;
  std::string architecture_;
};

// How rotary frequencies are made from a file's keys.
struct RopeDefaults {
  RopePairing pairing = RopePairing::halves;
  float base = 10000.0f;
  bool yarn_truncates = true;  // rounds the range of interpolated pairs to whole ones
};
// Of heads of `key_dim` values.
RopeSpec read_rope(const ModelFile& file, uint32_t key_dim, const SpecOptions& options,
                   const RopeDefaults& defaults);
// Unscaled frequencies of another base, for the layers that have their own.
RopeSpec plain_rope(uint32_t dims, float base, RopePairing pairing);

// Gives layers their window: all but every n-th, or those the file flags. What the file does not say comes from
// `usual`: the window (0: none) and n (0: every layer has it).
struct WindowDefaults {
  uint32_t window = 0;
  uint32_t pattern = 0;
};
void read_windows(const ModelFile& file, ModelSpec& spec, const WindowDefaults& usual);

// Of every layer's MLP, dense or of experts.
void set_gate(ModelSpec& spec, const Gate& gate);
void set_routing(ModelSpec& spec, Routing routing);

// What all of them share. The others start from it and say only what differs.
ModelSpec llama_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec common_spec(const ModelFile& file, const SpecOptions& options, const RopeDefaults& rope);

ModelSpec granite_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec smollm3_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec qwen2_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec qwen3_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec qwen3_moe_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec qwen35_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec gemma2_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec gemma3_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec phi3_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec olmo2_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec gpt2_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec gpt_oss_spec(const ModelFile& file, const SpecOptions& options);

}  // namespace quire::arch
