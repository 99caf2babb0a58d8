#include "backend/cuda/pinned_memory.h"

#include <bit>

#include "backend/cuda/device_memory.h"

namespace quire::cuda {

PinnedMemory::Block PinnedMemory::take(size_t bytes) {
  for (const Owned& one : blocks_) {
    if (one.bytes >= bytes && one.memory.use_count() == 1) return one.memory;
  }
  const size_t size = std::bit_ceil(bytes < 4096 ? size_t(4096) : bytes);
  void* memory = nullptr;
  CUDA_CHECK(cudaMallocHost(&memory, size));
  Block block(static_cast<std::byte*>(memory), [](std::byte* gone) { cudaFreeHost(gone); });
  blocks_.push_back({block, size});
  return block;
}

}  // namespace quire::cuda
