#pragma once

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "model/hf_config.h"
#include "model/hf_tensors.h"
#include "model/model_file.h"
#include "model/safetensors.h"

namespace quire {

// A folder as Hugging Face keeps models (config.json, *.safetensors), seen as the GGUF file that llama.cpp's
// converter would make of it. Most tensors are views of the files; those in another order of rows, another
// layout (experts, FP8, MXFP4, GPT-2's transposed matrices) or too small to matter are made when loaded.
//
// config.json says things for which GGUF's readers have a fixed answer or no key. They are in these keys (ARCH is
// general.architecture); where a key is missing, as in GGUF files from elsewhere, the usual value holds:
//
//   ARCH.attention.sliding_window          tokens seen, itself included; 0: no window in any layer.
//                                          Usual: gemma2 4096, gemma3 1024, gpt-oss 128, else none
//   ARCH.attention.sliding_window_pattern  n: all layers but every n-th have the window; or a flag per layer.
//                                          Usual: gemma2 and gpt-oss 2, gemma3 6, else all layers
//   smollm3.attention.rope_pattern         a flag per layer: does it rotate? Usual: all but every 4th
//   ARCH.attention.scale                   factor on query . key (Gemma's query_pre_attn_scalar, Granite).
//                                          Usual: 1 / sqrt(head), or by the model's size (27B)
//   ARCH.attn_logit_softcapping,
//   ARCH.final_logit_softcapping           0: none. Usual: gemma2 50 and 30, else none
//   gemma3.rope.freq_base_swa              base in layers with a window, which are never scaled. Usual: 10000
//   qwen3moe.expert_weights_norm           are the chosen experts' weights made to sum to 1? Usual: yes
//   ARCH.vocab_size                        rows of the embedding
//   general.sampling.{temp, top_k, top_p, min_p, penalty_repeat}
//                                          what generation_config.json recommends
//   gemma4.attention.keys_are_values      have layers without a window no values of their own? Usual: where they have no
//                                          tensor attn_v
//   quire.eos_token_ids                    all tokens that end a text. Usual: eos_token_id
//   quire.rope.yarn_truncate               YaRN: are the ends of the ramp rounded to whole dimensions?
//                                          Usual: yes, gpt-oss no
//   quire.rope.attention_factor            YaRN: factor on cos and sin. Usual: 0.1 ln(factor) + 1
//   quire.swiglu_limit, quire.swiglu_alpha gpt-oss: clamp and slope. Usual: 7 and 1.702
//   quire.text_of                          the model that this is the text of, where it also sees images
//   quire.dense_layers                     a flag per layer: has it no experts, though others have? Usual: what
//                                          leading_dense_block_count and interleave_moe_layer_step say
//   quire.router_jitter                    phimoe: half of how far below the best a score is near. Usual: 0.01
//   quire.rope_pattern, quire.query_key_norm
//                                          llama4: a flag per layer: does it rotate? Are heads normed there?
//   llama4.attention.{chunk_size, temperature_scale, temperature_length}
//                                          Usual: 8192, 0.1, 8192
class HfFolder : public ModelFile {
 public:
  explicit HfFolder(const std::string& path);

  TensorData load(const TensorEntry& entry) const override;
  std::vector<std::span<const std::byte>> stored(const TensorEntry& entry) const override;
  std::string folder() const override { return path_; }
  std::vector<std::string> losses() const override;

 private:
  // Of the packed matrices that became a type.
  struct Lossy {
    size_t tensors = 0;
    PackedLoss loss;
  };

  HfConfig config_;
  SafetensorsFolder files_;
  HfPackedTensors packed_;
  mutable std::mutex mutex_;  // over what follows
  mutable std::map<DType, Lossy> lossy_;
  std::vector<HfTensor> sources_;  // by place in tensors()
};

}  // namespace quire
