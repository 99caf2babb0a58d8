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
  std::vector<uint32_t> counts_or_none(const char* key, size_t layers) const;  // each may be 0
  float real(const char* key, float otherwise) const;
  bool flag(const char* key, bool otherwise) const;

 private:
  const Metadata* metadata_;
  std::string architecture_;
};

// How rotary frequencies are made from a file's keys.
struct RopeDefaults {
  RopePairing pairing = RopePairing::halves;
  float base = 10000.0f;
  bool yarn_truncates = true;  // rounds the range of interpolated pairs to whole ones
  const char* base_key = "rope.freq_base";
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
// How experts are chosen; what the file does not say comes from `usual`.
void read_routing(const ModelFile& file, ModelSpec& spec, const Routing& usual);
// An MLP beside the experts of every layer that has them, where the file speaks of one.
enum class OutputGate : uint8_t { none, sigmoid };
void read_shared_experts(const ModelFile& file, ModelSpec& spec, OutputGate gate = OutputGate::none);

// Of every layer: norms that subtract the mean; MLPs without a gate; norms of query and key heads.
void use_layer_norms(ModelSpec& spec);
void use_plain_mlps(ModelSpec& spec, Nonlinearity function);
void set_query_key_norm(ModelSpec& spec, QueryKeyNorm norm);
// Where the first layer of the file has weights for them.
void maybe_query_key_norm(const ModelFile& file, ModelSpec& spec, QueryKeyNorm norm);
// Norms after the blocks instead of before them.
void use_post_norms(ModelSpec& spec);
// Heads of layers with a window are of their own size, and rotate by a base of their own.
void read_window_heads(const ModelFile& file, ModelSpec& spec);
// What is read for each layer, and what multiplies what a layer leaves.
void read_layer_inputs(const ModelFile& file, ModelSpec& spec);
void read_output_scales(const ModelFile& file, ModelSpec& spec);
// The last layers read the rows of the last one of their kind that has its own.
void read_sharing(const ModelFile& file, ModelSpec& spec);
// Layers without a window do not rotate.
void rotate_windows_only(ModelSpec& spec);

// What all of them share. The others start from it and say only what differs. In mixed layers what a file gives no heads of keys and
// values, or no width, has no mixer, or no MLP.
enum class Layers : uint8_t { attention, mixed };
ModelSpec llama_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec common_spec(const ModelFile& file, const SpecOptions& options, const RopeDefaults& rope,
                      Layers layers = Layers::attention);
// The multipliers of Granite.
void read_granite_scales(const ModelFile& file, ModelSpec& spec);

// Recurrent mixers by the keys of a file, which are refused where they cannot be.
DeltaNetSpec read_delta_net(const ModelFile& file, const ModelSpec& spec, KeyOrder order);
StateSpaceSpec read_state_space(const ModelFile& file, const ModelSpec& spec);
SelectiveScanSpec read_selective_scan(const ModelFile& file, const ModelSpec& spec);
ShortConvolutionSpec read_short_convolution(const ModelFile& file, const ModelSpec& spec);
// Gives every layer without a mixer this one.
void fill_mixers(ModelSpec& spec, const MixerSpec& mixer);
// Layers of attention do not rotate.
void never_rotate(ModelSpec& spec);

ModelSpec granite_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec smollm3_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec qwen2_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec qwen3_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec qwen3_moe_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec qwen35_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec qwen35_moe_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec qwen3_next_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec lfm2_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec lfm2_moe_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec granite_hybrid_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec nemotron_h_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec mamba_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec mamba2_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec falcon_h1_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec jamba_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec gemma2_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec gemma3_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec gemma3n_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec gemma4_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec phi3_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec olmo2_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec gpt2_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec gpt_oss_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec mistral3_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec llama4_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec granite_moe_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec ernie4_5_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec ernie4_5_moe_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec qwen2_moe_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec gemma_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec phi_moe_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec olmoe_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec glm4_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec chatglm_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec glm4_moe_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec minimax_m2_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec minimax_m3_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec dots1_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec deepseek2_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec deepseek32_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec deepseek4_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec glm_dsa_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec kimi_linear_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec mistral4_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec hunyuan_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec exaone4_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec seed_oss_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec apertus_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec command_r_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec cohere2_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec cohere2_moe_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec mimo2_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec laguna_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec muse_glimmer_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec gpt_neox_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec phi2_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec starcoder2_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec bloom_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec mpt_spec(const ModelFile& file, const SpecOptions& options);
ModelSpec falcon_spec(const ModelFile& file, const SpecOptions& options);

}  // namespace quire::arch
