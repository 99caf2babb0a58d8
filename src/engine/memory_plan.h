#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

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
// Of one side of the backend: of a model that is not split all of it is the device's.
MemoryPlan plan_memory(const ModelFile& file, const ModelSpec& spec, const EngineOptions& options,
                       const Backend& backend, Side side = Side::device);

// So many pages of every group: what they take on one side.
size_t kv_bytes_on(Side side, const KvLayout& layout, std::span<const uint32_t> pages_per_group);

// The pages of each layer group that an engine with these options has.
std::vector<uint32_t> kv_pages(const KvLayout& layout, const EngineOptions& options);

// What a memory holds of the keys and values of a model in one format.
// What a token that every layer still sees takes; or, where rows are of several tokens, what is kept of it once no window sees it any more.
size_t lasting_bytes_per_token(const KvLayout& layout);
struct KvRoom {
  size_t bytes_per_token = 0;  // lasting
  size_t sequence_bytes = 0;   // of one sequence of the whole context, in pages
  double sequences = 0;        // of the whole context
  uint64_t tokens = 0;         // of however many sequences
};
KvRoom kv_room(const ModelSpec& spec, const KvFormats& formats, uint32_t context, size_t bytes);

}  // namespace quire
