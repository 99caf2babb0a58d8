#include "backend/cuda/weight_copies.h"

#include <algorithm>
#include <cstring>

namespace quire::cuda {
namespace {

constexpr uint32_t kThreads = 8;  // more do not read a mapped file faster than a device takes it
constexpr size_t kPart = size_t(1) << 20;

}  // namespace

WeightCopies::WeightCopies() : threads_(std::min(kThreads, usable_cpus())) {
  for (Block& block : blocks_) block.memory = pinned_.take(kBlockBytes);
}

WeightCopies::~WeightCopies() {
  for (const Block& block : blocks_) {
    if (block.is_used) cudaEventSynchronize(block.taken.get());
  }
}

void WeightCopies::copy(void* to, const void* from, size_t bytes, cudaStream_t stream) {
  const auto* source = static_cast<const std::byte*>(from);
  copy_made(
      to, bytes, 1,
      [source](std::byte* at, size_t begin, size_t end) { std::memcpy(at, source + begin, end - begin); },
      stream);
}

void WeightCopies::copy_made(void* to, size_t bytes, size_t unit, const Fill& fill, cudaStream_t stream) {
  CHECK(unit > 0 && unit <= kBlockBytes);
  const size_t most = kBlockBytes / unit * unit;
  const size_t part = std::max(kPart / unit * unit, unit);
  for (size_t begin = 0; begin < bytes; begin += most) {
    const size_t count = std::min(most, bytes - begin);
    Block& block = blocks_[next_++ % blocks_.size()];
    if (block.is_used) block.taken.wait();
    threads_.parallel_for((count + part - 1) / part, 1, [&](size_t first, size_t last) {
      for (size_t i = first; i < last; ++i) {
        const size_t at = i * part;
        fill(block.memory.get() + at, begin + at, begin + std::min(at + part, count));
      }
    });
    CUDA_CHECK(cudaMemcpyAsync(static_cast<std::byte*>(to) + begin, block.memory.get(), count,
                               cudaMemcpyHostToDevice, stream));
    block.taken.record(stream);
    block.is_used = true;
  }
}

}  // namespace quire::cuda
