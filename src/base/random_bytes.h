#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace quire {

// Bytes of the system's generator, which nobody can guess. Any thread.
void fill_random(std::span<std::byte> bytes);

template <size_t N>
std::array<std::byte, N> random_bytes() {
  std::array<std::byte, N> bytes;
  fill_random(bytes);
  return bytes;
}

}  // namespace quire
