#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

#include <cuda_runtime_api.h>

#include "backend/cuda/device_memory.h"
#include "backend/cuda/pinned_memory.h"

namespace quire::cuda {

// The lists that a step's kernels read: gathered on the host, brought to the device by one copy.
class StepUpload {
 public:
  // Where a list will be.
  template <class T>
  struct Place {
    size_t offset = 0;
    size_t count = 0;
  };

  void clear() { bytes_.clear(); }
  template <class T>
  Place<T> add(std::span<const T> values) {
    const Place<T> place = room<T>(values.size());
    if (!values.empty()) std::memcpy(bytes_.data() + place.offset, values.data(), values.size_bytes());
    return place;
  }
  template <class T>
  Place<T> add(const std::vector<T>& values) {
    return add(std::span<const T>(values));
  }
  // A list that is filled in place; what is returned holds until the next is added.
  template <class T>
  std::span<T> add(size_t count, Place<T>& place) {
    place = room<T>(count);
    return {reinterpret_cast<T*>(bytes_.data() + place.offset), count};
  }

  // Starts the copy; the lists of the step before may still be read by what is in the stream.
  void send(PinnedMemory& pinned, cudaStream_t stream);
  // REQUIRES: sent.
  template <class T>
  T* at(Place<T> place) const {
    return reinterpret_cast<T*>(memory_.as<std::byte>() + place.offset);
  }
  // What the copy reads until it has happened.
  const PinnedMemory::Block& source() const { return source_; }

 private:
  static constexpr size_t kAlignment = 64;

  template <class T>
  Place<T> room(size_t count) {
    const size_t offset = (bytes_.size() + kAlignment - 1) / kAlignment * kAlignment;
    bytes_.resize(offset + count * sizeof(T));
    return {offset, count};
  }

  std::vector<std::byte> bytes_;
  DeviceBuffer memory_;
  PinnedMemory::Block source_;
};

}  // namespace quire::cuda
