#pragma once

#include <cstdint>
#include <initializer_list>

#include <cuda.h>

namespace quire::cuda {

// 16-bit numbers in device memory as boxes of them are copied to shared memory: rows of 128 bytes, swizzled. Innermost
// dimension first; strides in bytes, of all dimensions but the innermost.
struct HalfTensor {
  const void* data;
  std::initializer_list<uint64_t> sizes;
  std::initializer_list<uint64_t> strides_bytes;
  std::initializer_list<uint32_t> box;
};

// Throws Error if the driver refuses: an address or a stride that is no multiple of 16.
CUtensorMap make_tensor_map(const HalfTensor& tensor);

}  // namespace quire::cuda
