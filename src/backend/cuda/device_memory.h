#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <cuda_runtime_api.h>

#include "base/check.h"

// What every caller of CUDA needs: errors as sentences, and memory, streams and events that end with their
// owner. An object belongs to the device that was current when it was made.

namespace quire::cuda {

// Throws Error unless `result` is success, DeviceLost if no later call can succeed. `call` is what was called, for the sentence.
void check_call(cudaError_t result, const char* call, const char* file, int line);

// Throws Error with what there is if there is not enough.
void* allocate_on_device(size_t bytes);

// False where there is no driver or no GPU. Never throws.
bool has_device();

// Compute capability of the current device as one number: 90 for 9.0. Throws Error where there is none.
int compute_capability();

// Multiprocessors of the current device.
int multiprocessors();

// Shared memory that a block of threads can have on it.
uint32_t most_shared_bytes();

// Bytes on the device.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  explicit DeviceBuffer(size_t bytes);
  ~DeviceBuffer();
  DeviceBuffer(DeviceBuffer&& other) noexcept { swap(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    swap(other);
    return *this;
  }

  template <class T>
  static DeviceBuffer of(std::span<const T> values) {
    DeviceBuffer buffer(values.size_bytes());
    buffer.upload(values.data(), values.size_bytes());
    return buffer;
  }
  template <class T>
  static DeviceBuffer of(const std::vector<T>& values) {
    return of(std::span<const T>(values));
  }

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }

  // These wait until it is done, but not for work in streams before it. REQUIRES: bytes <= this->bytes().
  void upload(const void* from, size_t bytes);
  void download(void* to, size_t bytes) const;
  void fill(uint8_t byte);
  template <class T>
  std::vector<T> download() const {
    std::vector<T> values(bytes_ / sizeof(T));
    download(values.data(), values.size() * sizeof(T));
    return values;
  }

 private:
  void swap(DeviceBuffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }

  void* data_ = nullptr;
  size_t bytes_ = 0;
};

class Stream {
 public:
  Stream();
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  cudaStream_t get() const { return stream_; }
  void wait() const;  // until all work in it has ended; throws what it failed with

 private:
  cudaStream_t stream_ = nullptr;
};

class Event {
 public:
  Event();
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  cudaEvent_t get() const { return event_; }
  void record(cudaStream_t stream) const;
  void wait() const;
  float ms_since(const Event& start) const;  // REQUIRES: both have happened

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace quire::cuda

// For calls of the CUDA runtime, whose failure is the machine's and not ours: no memory, no device, a fault.
#define CUDA_CHECK(call) ::quire::cuda::check_call((call), #call, __FILE__, __LINE__)
