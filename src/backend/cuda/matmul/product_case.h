#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "backend/cuda/device_case.h"
#include "backend/cuda/matmul/products.h"
#include "backend/cuda/matmul/random_weight.h"
#include "backend/cuda/matmul/reference_product.h"
#include "tensor/float16.h"

// Of tests only: tokens and weights with what the reference makes of them.

namespace quire::cuda {

// Tokens whose products are compared; each batch is a run of them.
struct Tokens {
  uint32_t count, cols, padded_cols;
  std::vector<uint16_t> natural;  // bf16 [count, cols]
  DeviceBuffer rows;              // f32 [count, cols]
  DeviceBuffer positions;         // bf16 [count rounded up to 8, padded cols], in the order of positions

  Tokens(uint32_t tokens, uint32_t columns)
      : count(tokens),
        cols(columns),
        padded_cols(round_up(columns, kBlockK)),
        natural(size_t(tokens) * columns) {
    std::vector<float> values(natural.size());
    std::vector<uint16_t> ordered(size_t(round_up(tokens, 8)) * padded_cols);
    std::minstd_rand random(tokens + columns);
    for (uint32_t token = 0; token < tokens; ++token) {
      for (uint32_t k = 0; k < columns; ++k) {
        const size_t at = size_t(token) * columns + k;
        natural[at] = f32_to_bf16((float(random() % 65536) - 32768.0f) * 0x1p-14f);
        values[at] = bf16_to_f32(natural[at]);
        ordered[size_t(token) * padded_cols + k / kBlockK * kBlockK + position_of(k % kBlockK)] = natural[at];
      }
    }
    rows = DeviceBuffer::of(values);
    positions = DeviceBuffer::of(ordered);
  }
};

// A weight on the device with the products that the reference says it has.
struct ProductCase {
  WeightShape shape;
  DeviceBuffer packed;
  PackedWeight weight;
  DeviceBuffer expected;  // [tokens, rows]

  ProductCase(const MatrixView& source, const Tokens& tokens, cudaStream_t stream)
      : shape(packed_shape(source, {})),
        packed(shape.bytes()),
        weight(pack(source, {}, packed.as<uint8_t>(), stream)),
        expected(size_t(tokens.count) * shape.rows * 4) {
    DeviceBuffer rows(size_t(shape.padded_rows()) * tokens.padded_cols * 2);
    unpack_weight(weight, rows.as<uint16_t>(), stream);
    reference_product(shape, rows.as<uint16_t>(), tokens.positions.as<uint16_t>(), tokens.count,
                      expected.as<float>(), stream);
    CUDA_CHECK(cudaStreamSynchronize(stream));
  }
};

// Whether the current device can run a kernel with so many tokens.
inline bool can_run(ProductKernel kernel, uint32_t tokens, const DeviceTraits& device) {
  if (kernel == ProductKernel::plain) return true;
  return device.capability == 90 && (kernel == ProductKernel::tile || tokens <= kStreamTokens);
}

inline constexpr ProductKernel kProductKernels[] = {ProductKernel::plain, ProductKernel::stream,
                                                    ProductKernel::tile};

}  // namespace quire::cuda
