#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/thread_pool.h"
#include "model/type_mix.h"

namespace quire {

// Of recurrent layers, gated delta nets: all but every n-th layer are.
struct SynthRecurrence {
  uint32_t key_heads = 0, value_heads = 0, head_dim = 0;
  uint32_t attention_every = 4;
};

// The measures of a Llama-shaped model that exists only to be timed or tested, or of one shaped like Qwen 3.5.
struct SynthShape {
  std::string name;
  uint32_t dim, layers, heads, kv_heads, head_dim, mlp_width, vocab, context;
  bool tied;
  float rope_base;
  SynthRecurrence recurrence = {};  // no key heads: none
};

const std::vector<SynthShape>& synth_shapes();
// Throws Error listing the known ones.
const SynthShape& synth_shape(std::string_view name);

// The head of such a model without its weights: enough to plan with. Its tensors cannot be loaded.
std::unique_ptr<ModelFile> synth_head(const SynthShape& shape, const TypeMix& mix);

// Writes a valid GGUF file with random weights: distinct rows repeat after a while, which no speed depends
// on.
void write_synthetic_model(const SynthShape& shape, const TypeMix& mix, const std::string& out,
                           ThreadPool& pool,
                           const std::function<void(size_t done, size_t total)>& progress = {});

}  // namespace quire
