#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "tensor/quantize.h"
#include "tensor/tensor_view.h"

namespace quire::cuda {

// Of tests and benchmarks only: all types that the weight of a product can have.
inline constexpr DType kProductTypes[] = {
    DType::f32,  DType::f16,  DType::bf16,   DType::f8_e4m3, DType::q4_0, DType::q4_1,
    DType::q5_0, DType::q5_1, DType::q8_0,   DType::q2_k,    DType::q3_k, DType::q4_k,
    DType::q5_k, DType::q6_k, DType::iq4_nl, DType::iq4_xs,  DType::mxfp4};

// A matrix of normal numbers as a file would hold it, the same on every machine.
class RandomWeight {
 public:
  RandomWeight(DType dtype, size_t rows, size_t cols, uint32_t seed)
      : dtype_(dtype), rows_(rows), cols_(cols) {
    const size_t bytes = row_bytes(dtype, cols);
    bytes_.resize(rows * bytes);
    std::mt19937 random(seed);
    std::vector<float> row(cols);
    for (size_t r = 0; r < rows; ++r) {
      for (float& value : row) value = normal(random);
      quantize_row(dtype, row, bytes_.data() + r * bytes);
    }
  }

  MatrixView view() const { return {bytes_.data(), dtype_, rows_, cols_}; }

 private:
  // The sum of four uniform numbers, because standard libraries differ in their normal distributions.
  static float normal(std::mt19937& random) {
    float sum = 0;
    for (int i = 0; i < 4; ++i) sum += float(random() >> 8) * 0x1p-24f - 0.5f;
    return sum * 0.05f;
  }

  DType dtype_;
  size_t rows_, cols_;
  std::vector<std::byte> bytes_;
};

// Large matrices quickly: random codes under plausible scales, written straight into blocks. Row 3 is all zeros.
class RandomBlocks {
 public:
  RandomBlocks(DType dtype, size_t rows, size_t cols, uint64_t seed)
      : dtype_(dtype), rows_(rows), cols_(cols) {
    const size_t row_size = row_bytes(dtype, cols), block = traits(dtype).block_bytes;
    bytes_.resize((rows * row_size + 7) / 8 * 8);
    for (size_t i = 0; i < bytes_.size(); i += 8) {
      seed = seed * 6364136223846793005u + 1442695040888963407u;
      const uint64_t word = (seed ^ seed >> 29) * 0x9e3779b97f4a7c15u;
      std::memcpy(&bytes_[i], &word, 8);
    }
    for (size_t at = 0; at + block <= rows * row_size; at += block) tame(&bytes_[at]);
    if (rows > 3) std::memset(&bytes_[3 * row_size], 0, row_size);
  }

  MatrixView view() const { return {bytes_.data(), dtype_, rows_, cols_}; }

 private:
  // Gives a block of random bits scales, or an exponent, as weights have.
  void tame(std::byte* block) const {
    uint16_t random;
    std::memcpy(&random, block, 2);
    const auto half = [](uint32_t exponent, uint32_t bits) {
      return uint16_t(exponent << 10 | (bits & 0x83ff));
    };
    if (dtype_ == DType::bf16) random = uint16_t((random & 0x807f) | (118 + (random >> 7 & 3)) << 7);
    if (dtype_ == DType::q8_0) random = half(4, random);  // near 2^-11
    if (dtype_ == DType::q4_0) random = half(8, random);
    if (dtype_ == DType::q4_k) {
      random = half(2, random & 0x7fff);
      const uint16_t min = half(4, random * 3u & 0x7fff);
      std::memcpy(block + 2, &min, 2);
    }
    if (dtype_ == DType::mxfp4) {
      block[0] = std::byte(118 + random % 4);
      return;
    }
    if (dtype_ == DType::q6_k) {
      random = half(1, random);
      std::memcpy(block + 208, &random, 2);
      return;
    }
    std::memcpy(block, &random, 2);
  }

  DType dtype_;
  size_t rows_, cols_;
  std::vector<std::byte> bytes_;
};

}  // namespace quire::cuda
