#pragma once

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
// config.json says things for which GGUF's readers have a fixed answer or no key. They are here (ARCH is
// general.architecture); where a key is missing, as in GGUF files from elsewhere, the usual value holds:
//
// | key                                  | value      | meaning                            | usual |
// |--------------------------------------|------------|------------------------------------|-------------------|
// | ARCH.attention.sliding_window        | number     | tokens seen, itself included;      | gemma2 4096,
// else | |                                      |            | 0: no window in any layer          | no window
// | | ARCH.attention.sliding_window_pattern| number n,  | all layers but every n-th have the | gemma2,
// gpt-oss 2,| |                                      | or a flag  | window, or those with true have it |
// gemma3 6,         | |                                      | per layer  | | else all          | |
// ARCH.attention.rope_pattern          | flag per   | SmolLM3: the layers that rotate    | all but every 4th
// | |                                      | layer      |                                    | | |
// ARCH.attention.scale                 | real       | factor on Q·K: Gemma 2 and 3 from  | 1/sqrt(head), or |
// |                                      |            | query_pre_attn_scalar, Granite     | by size (27B) |
// | ARCH.attn_logit_softcapping,         | real       | 0: none                            | gemma2 50, 30, |
// | ARCH.final_logit_softcapping         |            |                                    | else none | |
// ARCH.rope.freq_base_swa              | real       | Gemma 3: base in layers with a     | 10000 | | | |
// window; they are never scaled      |                   | | ARCH.expert_weights_norm             | flag |
// Qwen3-MoE: the chosen experts'     | true              | |                                      | | weights
// are made to sum to 1       |                   | | ARCH.vocab_size                      | number     | rows
// of the embedding              |                   | | general.sampling.{temp,top_k,top_p,  | number     |
// what generation_config.json        |                   | |   min_p,penalty_repeat}              | |
// recommends                         |                   | | quire.eos_token_ids                  | numbers
// | all tokens that end a text         | eos_token_id      | | quire.rope.yarn_truncate             | flag |
// YaRN: are the ends of the ramp     | true              | |                                      | | rounded
// to whole dimensions?       |                   | | quire.rope.attention_factor          | real       |
// YaRN: factor on cos and sin        | 0.1 ln(factor) + 1| | quire.swiglu_limit, .swiglu_alpha    | real |
// gpt-oss: clamp and slope           | 7, 1.702          |
class HfFolder : public ModelFile {
 public:
  explicit HfFolder(const std::string& path);

  TensorData load(const TensorEntry& entry) const override;
  std::string folder() const override { return path_; }

 private:
  HfConfig config_;
  SafetensorsFolder files_;
  std::vector<HfTensor> sources_;  // by place in tensors()
};

}  // namespace quire
