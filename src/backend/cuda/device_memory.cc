#include "backend/cuda/device_memory.h"

#include <atomic>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "backend/cuda/device_failure.h"
#include "backend/device_lost.h"

namespace quire::cuda {

void check_call(cudaError_t result, const char* call, const char* file, int line) {
  if (result == cudaSuccess) return;
  cudaGetLastError();  // an error that is not sticky would be reported again by the next call
  const char* name = std::strrchr(file, '/');
  const std::string told =
      sentence_for({.code = int(result),
                    .words = cudaGetErrorString(result),
                    .call = call,
                    .place = fmt::format("{}:{}", name != nullptr ? name + 1 : file, line)});
  if (failure_of(int(result)) == Failure::lost) throw DeviceLost("{}", told);
  throw Error("{}", told);
}

void* allocate_on_device(size_t bytes) {
  void* memory = nullptr;
  const cudaError_t result = cudaMalloc(&memory, bytes);
  if (failure_of(int(result)) != Failure::memory) {
    CUDA_CHECK(result);
    return memory;
  }
  cudaGetLastError();
  MissingMemory missing{.wanted = bytes};
  if (cudaMemGetInfo(&missing.free, &missing.total) != cudaSuccess) {
    cudaGetLastError();
    missing.total = 0;
  }
  throw Error("{}", sentence_for(missing));
}

bool has_device() {
  int count = 0;
  const bool found = cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
  if (!found) cudaGetLastError();
  return found;
}

namespace {

// What every launch asks for, of the first few devices.
struct Known {
  std::atomic<int> capability = 0, multiprocessors = 0, shared_bytes = 0;
};
constexpr int kKnownDevices = 64;
Known known[kKnownDevices];

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  CUDA_CHECK(cudaDeviceGetAttribute(&value, which, device));
  return value;
}

Known& look_at_current() {
  int device = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  CHECK(device < kKnownDevices);
  Known& found = known[device];
  if (found.multiprocessors == 0) {
    found.capability = attribute(cudaDevAttrComputeCapabilityMajor, device) * 10 +
                       attribute(cudaDevAttrComputeCapabilityMinor, device);
    found.shared_bytes = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    found.multiprocessors = attribute(cudaDevAttrMultiProcessorCount, device);
  }
  return found;
}

}  // namespace

int compute_capability() {
  return look_at_current().capability;
}

int multiprocessors() {
  return look_at_current().multiprocessors;
}

uint32_t most_shared_bytes() {
  return uint32_t(look_at_current().shared_bytes);
}

DeviceBuffer::DeviceBuffer(size_t bytes) : bytes_(bytes) {
  if (bytes > 0) data_ = allocate_on_device(bytes);
}

DeviceBuffer::~DeviceBuffer() {
  cudaFree(data_);
}

void DeviceBuffer::upload(const void* from, size_t bytes) {
  CHECK(bytes <= bytes_);
  if (bytes == 0) return;
  CUDA_CHECK(cudaMemcpy(data_, from, bytes, cudaMemcpyHostToDevice));
  // The copy may still be on its way, and streams of ours do not wait for the one it is in.
  CUDA_CHECK(cudaStreamSynchronize(nullptr));
}

void DeviceBuffer::download(void* to, size_t bytes) const {
  CHECK(bytes <= bytes_);
  if (bytes > 0) CUDA_CHECK(cudaMemcpy(to, data_, bytes, cudaMemcpyDeviceToHost));
}

void DeviceBuffer::fill(uint8_t byte) {
  if (bytes_ == 0) return;
  CUDA_CHECK(cudaMemset(data_, byte, bytes_));
  CUDA_CHECK(cudaStreamSynchronize(nullptr));
}

Stream::Stream() {
  CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
}

Stream::~Stream() {
  cudaStreamDestroy(stream_);
}

void Stream::wait() const {
  CUDA_CHECK(cudaStreamSynchronize(stream_));
}

Event::Event() {
  CUDA_CHECK(cudaEventCreate(&event_));
}

Event::~Event() {
  cudaEventDestroy(event_);
}

void Event::record(cudaStream_t stream) const {
  CUDA_CHECK(cudaEventRecord(event_, stream));
}

void Event::wait() const {
  CUDA_CHECK(cudaEventSynchronize(event_));
}

float Event::ms_since(const Event& start) const {
  float ms = 0;
  CUDA_CHECK(cudaEventElapsedTime(&ms, start.event_, event_));
  return ms;
}

}  // namespace quire::cuda
