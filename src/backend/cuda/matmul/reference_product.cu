#include <cuda_bf16.h>

#include "backend/cuda/launch.cuh"
#include "backend/cuda/matmul/reference_product.h"
#include "backend/cuda/ptx.cuh"

namespace quire::cuda {
namespace {

// Rounded once: a last bit that is set where f32 cut something off keeps it from looking like a tie.
__device__ uint16_t nearest_bf16(double value) {
  const float cut = __double2float_rz(value);
  const uint32_t bits = __float_as_uint(cut) | (double(cut) != value ? 1u : 0u);
  return __bfloat16_as_ushort(__float2bfloat16_rn(__uint_as_float(bits)));
}

__device__ double load_bf16(const uint8_t* at) {
  return double(__uint_as_float(uint32_t(*reinterpret_cast<const uint16_t*>(at)) << 16));
}

__global__ void __launch_bounds__(256) unpack(const WeightShape shape, const uint8_t* data, uint16_t* rows) {
  const uint32_t cols = shape.blocks() * kBlockK;
  const size_t index = size_t(blockIdx.x) * 256 + threadIdx.x;
  const uint32_t row = uint32_t(index / cols), k = index % cols;
  if (row >= shape.padded_rows()) return;
  const WeightFormat format = shape.format;
  const uint8_t* block =
      data + (size_t(row) / kTileRows * shape.blocks() + k / kBlockK) * block_bytes(format);
  const uint32_t in_tile = row % kTileRows, in_block = k % kBlockK;
  uint32_t code = 0;
  for (uint32_t bit = 0; bit < code_bits(format); ++bit) {
    const uint32_t place = code_bit(format, in_tile, in_block, bit);
    code |= uint32_t(block[place / 8] >> place % 8 & 1) << bit;
  }
  uint16_t weight = uint16_t(code);
  if (format != WeightFormat::bf16) {
    const uint8_t* scale = block + scale_place(format, in_tile, in_block);
    double value = load_bf16(scale) / double(stored_scale_factor(format)) * double(code_value(format, code));
    if (format == WeightFormat::q4_k) value += load_bf16(scale + 4) / double(kStoredMin);
    weight = nearest_bf16(value);
  }
  rows[size_t(row) * cols + k / kBlockK * kBlockK + position_of(k % kBlockK)] = weight;
}

__global__ void __launch_bounds__(128) multiply(const WeightShape shape, const uint16_t* rows,
                                                const uint16_t* activations, uint32_t tokens, float* out) {
  const uint32_t warp = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4,
                 t = lane % 4;
  const uint32_t token_tiles = (tokens + 7) / 8;
  const uint32_t first_row = warp / token_tiles * 16, first_token = warp % token_tiles * 8;
  if (first_row >= shape.padded_rows()) return;
  const uint32_t words = shape.blocks() * kBlockK / 2;  // of a row
  const uint32_t* a = reinterpret_cast<const uint32_t*>(rows) + size_t(first_row + g) * words + t;
  const uint32_t* b = reinterpret_cast<const uint32_t*>(activations) + size_t(first_token + g) * words + t;
  const KPlan plan = shape.k_plan();
  float total[4];
  for (uint32_t slice = 0; slice < plan.slices; ++slice) {
    float sum[4] = {};
    const uint32_t slice_words = words / plan.slices;
    for (uint32_t w = slice * slice_words; w < (slice + 1) * slice_words; w += 8) {
      const uint32_t operand[4] = {a[w], a[8 * size_t(words) + w], a[w + 4], a[8 * size_t(words) + w + 4]};
      ptx::mma_bf16(sum, operand, b[w], b[w + 4]);
    }
    for (int i = 0; i < 4; ++i) total[i] = slice == 0 ? sum[i] : total[i] + sum[i];
  }
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t row = first_row + g + i / 2 * 8, token = first_token + 2 * t + i % 2;
    if (row < shape.rows && token < tokens) out[size_t(token) * shape.rows + row] = total[i];
  }
}

__global__ void compare(const uint32_t* a, const uint32_t* b, size_t count, unsigned long long* differences) {
  const size_t index = size_t(blockIdx.x) * 256 + threadIdx.x;
  if (index < count && a[index] != b[index]) atomicAdd(differences, 1ull);
}

unsigned blocks_of_256(size_t count) {
  return unsigned((count + 255) / 256);
}

}  // namespace

void unpack_weight(const PackedWeight& weight, uint16_t* rows, cudaStream_t stream) {
  const WeightShape& shape = weight.shape;
  launch(unpack, {blocks_of_256(size_t(shape.padded_rows()) * shape.blocks() * kBlockK), 256}, Overlap::none,
         stream, shape, weight.data, rows);
}

void reference_product(const WeightShape& shape, const uint16_t* rows, const uint16_t* activations,
                       uint32_t tokens, float* out, cudaStream_t stream) {
  const uint32_t warps = shape.tiles() * ((tokens + 7) / 8);
  launch(multiply, {(warps + 3) / 4, 128}, Overlap::none, stream, shape, rows, activations, tokens, out);
}

uint64_t count_differences(const void* a, const void* b, size_t count, cudaStream_t stream) {
  DeviceBuffer differences(8);
  differences.fill(0);
  launch(compare, {blocks_of_256(count), 256}, Overlap::none, stream, static_cast<const uint32_t*>(a),
         static_cast<const uint32_t*>(b), count, differences.as<unsigned long long>());
  CUDA_CHECK(cudaStreamSynchronize(stream));
  return differences.download<uint64_t>()[0];
}

}  // namespace quire::cuda
