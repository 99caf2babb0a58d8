#include <cuda_fp16.h>

#include "backend/cuda/launch.cuh"
#include "backend/cuda/operations.h"
#include "backend/cuda/ptx.cuh"

namespace quire::cuda {
namespace {

__device__ __forceinline__ uint16_t two_bytes(const uint8_t* at) {
  return uint16_t(at[0] | at[1] << 8);
}

__device__ __forceinline__ float half_at(const uint8_t* at) {
  return __half2float(__ushort_as_half(two_bytes(at)));
}

// Scale and minimum of a sub-block of 32 (see unpack_scales_and_mins).
__device__ __forceinline__ int2 scale_and_min(const uint8_t* packed, uint32_t j) {
  if (j < 4) return {packed[j] & 63, packed[j + 4] & 63};
  return {(packed[j + 4] & 15) | packed[j - 4] >> 6 << 4, packed[j + 4] >> 4 | packed[j] >> 6 << 4};
}

__device__ __forceinline__ int half_byte(const uint8_t* bytes, uint32_t index, bool high) {
  return high ? bytes[index] >> 4 : bytes[index] & 15;
}

__device__ __forceinline__ float value_of_k(const uint8_t* block, int code, uint32_t k) {
  const int2 sub = scale_and_min(block + 4, k / 32);
  return (half_at(block) * float(sub.x)) * float(code) - half_at(block + 2) * float(sub.y);
}

// Number i of a row, with the CPU's operations (block_formats.h).
template <DType dtype>
__device__ __forceinline__ float value_at(const uint8_t* row, uint32_t i) {
  if constexpr (dtype == DType::f32) {
    return reinterpret_cast<const float*>(row)[i];
  } else if constexpr (dtype == DType::f16) {
    return half_at(row + 2 * i);
  } else if constexpr (dtype == DType::bf16) {
    return __uint_as_float(uint32_t(two_bytes(row + 2 * i)) << 16);
  } else if constexpr (dtype == DType::q8_0) {
    const uint8_t* block = row + i / 32 * 34;
    return half_at(block) * float(int8_t(block[2 + i % 32]));
  } else if constexpr (dtype == DType::q4_0) {
    const uint8_t* block = row + i / 32 * 18;
    return half_at(block) * float(half_byte(block + 2, i % 16, i % 32 >= 16) - 8);
  } else if constexpr (dtype == DType::q4_k) {
    const uint8_t* block = row + i / 256 * 144;
    const uint32_t k = i % 256;
    return value_of_k(block, half_byte(block + 16, k / 64 * 32 + k % 32, k % 64 >= 32), k);
  } else if constexpr (dtype == DType::q5_k) {
    const uint8_t* block = row + i / 256 * 176;
    const uint32_t k = i % 256;
    const int fifth = block[16 + k % 32] >> (k / 32) & 1;
    return value_of_k(block, half_byte(block + 48, k / 64 * 32 + k % 32, k % 64 >= 32) | fifth << 4, k);
  } else {
    static_assert(dtype == DType::q6_k);
    const uint8_t* block = row + i / 256 * 210;
    const uint32_t k = i % 256;
    const int low = half_byte(block, k / 128 * 64 + k % 64, k % 128 >= 64);
    const int high = block[128 + k / 128 * 32 + k % 32] >> (k / 32 % 4 * 2) & 3;
    return (half_at(block + 208) * float(int8_t(block[192 + k / 16]))) * float((low | high << 4) - 32);
  }
}

struct EmbedArgs {
  const uint8_t* table;
  size_t row_bytes;
  uint32_t rows;
  uint32_t cols;
  const float* positions;
  float scale;
  float* out;
  size_t out_stride;
  const uint32_t *token_ids, *token_positions;
};

template <DType dtype>
__global__ void embed_rows(const EmbedArgs args) {
  ptx::follow_kernel_before();
  const uint32_t token = blockIdx.x, id = args.token_ids[token];
  const uint8_t* row = args.table + (id < args.rows ? id : 0) * args.row_bytes;  // as on the CPU
  for (uint32_t i = threadIdx.x; i < args.cols; i += blockDim.x) {
    float value = value_at<dtype>(row, i) * args.scale;
    if (args.positions != nullptr)
      value += args.positions[size_t(args.token_positions[token]) * args.cols + i];
    args.out[token * args.out_stride + i] = value;
  }
}

using EmbedKernel = void (*)(EmbedArgs);

EmbedKernel kernel_for(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return embed_rows<DType::f32>;
    case DType::f16:
      return embed_rows<DType::f16>;
    case DType::bf16:
      return embed_rows<DType::bf16>;
    case DType::q8_0:
      return embed_rows<DType::q8_0>;
    case DType::q4_0:
      return embed_rows<DType::q4_0>;
    case DType::q4_k:
      return embed_rows<DType::q4_k>;
    case DType::q5_k:
      return embed_rows<DType::q5_k>;
    case DType::q6_k:
      return embed_rows<DType::q6_k>;
    default:
      return nullptr;
  }
}

}  // namespace

bool can_embed(DType dtype) {
  return kernel_for(dtype) != nullptr;
}

void embed(const DeviceEmbed& params, const DeviceTokens& tokens, cudaStream_t stream) {
  CHECK(can_embed(params.table.dtype) && params.out.width == params.table.cols);
  if (tokens.count == 0) return;
  const EmbedArgs args = {.table = reinterpret_cast<const uint8_t*>(params.table.data),
                          .row_bytes = row_bytes(params.table.dtype, params.table.cols),
                          .rows = uint32_t(params.table.rows),
                          .cols = uint32_t(params.table.cols),
                          .positions = params.positions,
                          .scale = params.scale,
                          .out = params.out.data,
                          .out_stride = params.out.stride,
                          .token_ids = tokens.ids,
                          .token_positions = tokens.positions};
  launch(kernel_for(params.table.dtype), {.blocks = tokens.count, .threads = 256},
         Overlap::with_kernel_before, stream, args);
}

}  // namespace quire::cuda
