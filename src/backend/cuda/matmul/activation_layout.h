#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cuda/matmul/weight_layout.h"

// How the activations of a step lie in the GPU's memory: bf16, [k / 64][token][64], positions in the order of the
// weights (position_of). The eight 16-byte pieces of a token's 128 bytes are swizzled by token % 8. So any run of
// tokens for 64 k is contiguous: one bulk copy brings it to shared memory as wgmma wants it, and ldmatrix reads it
// without conflicts. k is padded to 128 with zeros.

namespace quire::cuda {

inline constexpr uint32_t kActivationRowBytes = 128;

constexpr size_t activation_bytes(uint32_t tokens, uint32_t cols) {
  return size_t(round_up(cols, kBlockK)) / 64 * tokens * kActivationRowBytes;
}

// Byte of number (token, k).
constexpr size_t activation_place(uint32_t tokens, uint32_t token, uint32_t k) {
  const uint32_t position = position_of(k % kBlockK);
  const uint32_t part = k / kBlockK * 2 + position / 64;
  const uint32_t piece = (position % 64 / 8) ^ (token % 8);
  return (size_t(part) * tokens + token) * kActivationRowBytes + piece * 16 + position % 8 * 2;
}

// Byte of the number that pair `pair` of a gated unit becomes, of `width` of them.
constexpr size_t gated_place(uint32_t tokens, uint32_t token, uint32_t pair, uint32_t width) {
  if (!in_whole_block(pair, width)) return activation_place(tokens, token, pair);
  const uint32_t piece = (pair % 64 / 8) ^ (token % 8);
  return (size_t(pair / 64) * tokens + token) * kActivationRowBytes + piece * 16 + pair % 8 * 2;
}

}  // namespace quire::cuda
