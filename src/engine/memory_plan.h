#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "engine/engine.h"
#include "model/model_file.h"

namespace quire {

// What a model will take of memory at the most, told from the head of its file before anything is loaded.
struct MemoryPlan {
  size_t weights =
      0;  // packed, and what is read as the file has it; with the largest matrix twice while it is packed
  size_t kv = 0;
  size_t scratch = 0;  // activations, draws, the program and its vocabulary

  size_t total() const { return weights + kv + scratch; }
};
MemoryPlan plan_memory(const ModelFile& file, const ModelSpec& spec, const EngineOptions& options,
                       uint32_t threads);

}  // namespace quire
