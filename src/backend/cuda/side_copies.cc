#include "backend/cuda/side_copies.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <sys/mman.h>

#include "base/error.h"
#include "base/thread_pool.h"

namespace quire::cuda {
namespace {

// The system gives memory when it is first touched, and takes its time to clear it: so by several threads, and large pages at a
// time where it has them. What is left to be done when it is pinned is quick.
void touch_all(std::byte* begin, size_t bytes) {
  constexpr size_t kPart = size_t(64) << 20, kPage = 4096;
  ::madvise(begin, bytes, MADV_HUGEPAGE);
  ThreadPool(std::min(usable_cpus(), 16u)).parallel_for(bytes, kPart, [&](size_t from, size_t to) {
    for (size_t at = from; at < to; at += kPage) begin[at] = std::byte(0);
  });
}

}  // namespace

SideCopies::~SideCopies() {
  cudaStreamSynchronize(stream_.get());
  for (const Batch& batch : batches_) {
    for (cudaEvent_t event : {batch.begin, batch.end}) cudaEventDestroy(event);
  }
  for (cudaEvent_t event : events_) cudaEventDestroy(event);
}

Buffer SideCopies::allocate(size_t bytes) {
  if (bytes == 0) return Buffer();
  const auto refuse = [&](const char* why) {
    throw Error(
        "{} bytes of host memory cannot be pinned for the device ({}): ask for less with --kv-host, or 0",
        bytes, why);
  };
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) refuse(std::strerror(errno));
  auto* begin = static_cast<std::byte*>(memory);
  touch_all(begin, bytes);
  if (const cudaError_t result = cudaHostRegister(memory, bytes, cudaHostRegisterPortable);
      result != cudaSuccess) {
    cudaGetLastError();  // it is told here, and not again by the next call
    ::munmap(memory, bytes);
    refuse(cudaGetErrorString(result));
  }
  return Buffer(begin, bytes, MemoryKind::pinned, [bytes](std::byte* gone) {
    cudaHostUnregister(gone);
    ::munmap(gone, bytes);
  });
}

cudaEvent_t SideCopies::take_event() {
  cudaEvent_t event = nullptr;
  if (events_.empty()) {
    CUDA_CHECK(cudaEventCreate(&event));  // with the time: the rate is measured by it
    return event;
  }
  event = events_.back();
  events_.pop_back();
  return event;
}

uint64_t SideCopies::start(std::span<const ByteCopy> copies, cudaStream_t main) {
  try {
    const Batch batch{.mark = asked_ + 1, .begin = take_event(), .end = take_event()};
    enqueue(copies, batch, main);
    batches_.push_back(batch);
  } catch (...) {
    cudaStreamSynchronize(stream_.get());  // nobody will ask for what was begun
    throw;
  }
  return ++asked_;
}

void SideCopies::enqueue(std::span<const ByteCopy> copies, const Batch& batch, cudaStream_t main) const {
  CUDA_CHECK(cudaEventRecord(batch.end, main));
  CUDA_CHECK(cudaStreamWaitEvent(stream_.get(), batch.end));
  CUDA_CHECK(cudaEventRecord(batch.begin, stream_.get()));
  for (const ByteCopy& one : copies)
    CUDA_CHECK(cudaMemcpyAsync(one.to, one.from, one.bytes, cudaMemcpyDefault, stream_.get()));
  // A wait is for what an event meant when it was asked for: it may mean something else now.
  CUDA_CHECK(cudaEventRecord(batch.end, stream_.get()));
}

const SideCopies::Batch* SideCopies::find(uint64_t mark) const {
  const auto found = std::ranges::find(batches_, mark, &Batch::mark);
  return found == batches_.end() ? nullptr : &*found;
}

void SideCopies::order_after(uint64_t mark, cudaStream_t main) const {
  if (const Batch* batch = find(mark)) CUDA_CHECK(cudaStreamWaitEvent(main, batch->end));
}

std::optional<double> SideCopies::seconds(uint64_t mark) {
  const Batch* batch = find(mark);
  if (batch == nullptr) return 0;
  const cudaError_t result = cudaEventQuery(batch->end);
  if (result == cudaErrorNotReady) {
    cudaGetLastError();  // it is no error, but whoever asks for the last one would take it for one
    return std::nullopt;
  }
  CUDA_CHECK(result);
  float ms = 0;
  CUDA_CHECK(cudaEventElapsedTime(&ms, batch->begin, batch->end));
  while (!batches_.empty() && batches_.front().mark <= mark) {
    for (cudaEvent_t event : {batches_.front().begin, batches_.front().end}) events_.push_back(event);
    batches_.pop_front();
  }
  return double(ms) / 1000;
}

void SideCopies::wait(uint64_t mark) const {
  if (const Batch* batch = find(mark)) CUDA_CHECK(cudaEventSynchronize(batch->end));
}

}  // namespace quire::cuda
