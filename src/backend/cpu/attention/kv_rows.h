#pragma once

#include <cstddef>
#include <span>

#include "kv/layout/kv_layout.h"

namespace quire {

// Writes a row of a page in its format, turned if the format wants that.
void store_kv_row(KvFormat format, std::span<const float> values, std::byte* row);

// Reads it back, as the vector kernels do, bit by bit; it stays turned.
void load_kv_row(KvFormat format, const std::byte* row, std::span<float> values);

// Multiplies with the orthonormal Hadamard matrix of the largest power of two that divides the row's size, block by
// block. Twice is the identity, but for rounding. Scores of turned queries and keys are those of the rows as they were.
void turn_kv_row(std::span<float> values);

}  // namespace quire
