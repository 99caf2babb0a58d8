#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "backend/cuda/launch.cuh"
#include "backend/cuda/packing_kernels.h"
#include "backend/cuda/ptx.cuh"

namespace quire::cuda {
namespace {

struct PackArguments {
  WeightShape shape;
  const uint8_t* source;
  size_t row_bytes;
  const uint32_t* order;
  uint8_t* destination;
};

// Where packed row `row` comes from; null where it is padding.
__device__ const uint8_t* source_row(const PackArguments& args, uint32_t row) {
  if (row >= args.shape.rows) return nullptr;
  const uint32_t from = args.order != nullptr ? args.order[row] : row;
  return args.source + from * args.row_bytes;
}

__device__ float load_f16(const uint8_t* at) {  // files do not align
  return __half2float(__ushort_as_half(uint16_t(at[0] | at[1] << 8)));
}

__device__ uint16_t as_bf16(float value) {
  return __bfloat16_as_ushort(__float2bfloat16_rn(value));
}

__device__ uint16_t stored_scale(float scale) {
  return as_bf16(__bfloat162float(__float2bfloat16_rn(scale)) * kStoredScale);
}

// 32 codes of a row with what they share, as a block stores it.
struct Group {
  uint16_t scale = 0, min = 0;
  uint8_t codes[kGroupK] = {};
};

template <WeightFormat kFormat>
__device__ Group read_group(const uint8_t* row, uint32_t index) {
  Group group;
  if constexpr (kFormat == WeightFormat::q8_0) {
    const uint8_t* block = row + size_t(index) * 34;
    group.scale = stored_scale(load_f16(block));
    for (uint32_t i = 0; i < kGroupK; ++i) group.codes[i] = uint8_t(block[2 + i] + 128);
  } else if constexpr (kFormat == WeightFormat::q4_0) {
    const uint8_t* block = row + size_t(index) * 18;
    group.scale = stored_scale(load_f16(block));
    for (uint32_t i = 0; i < kGroupK; ++i) group.codes[i] = block[2 + i % 16] >> (i / 16 * 4) & 15;
  } else {
    const uint8_t* block = row + size_t(index / 8) * 144;
    const uint8_t* packed = block + 4;  // 6-bit scales and minimums of eight groups
    const uint32_t j = index % 8;
    uint32_t scale, min;
    if (j < 4) {
      scale = packed[j] & 63;
      min = packed[j + 4] & 63;
    } else {
      scale = (packed[j + 4] & 15) | packed[j - 4] >> 6 << 4;
      min = packed[j + 4] >> 4 | packed[j] >> 6 << 4;
    }
    group.scale = stored_scale(load_f16(block) * float(scale));
    const float offset = __bfloat162float(__float2bfloat16_rn(load_f16(block + 2) * float(min)));
    group.min = as_bf16(-offset * kStoredMin);
    for (uint32_t i = 0; i < kGroupK; ++i) group.codes[i] = block[16 + j / 2 * 32 + i] >> (j % 2 * 4) & 15;
  }
  return group;
}

// A warp packs a block: lane 4g + t has group t of rows g and g + 8.
template <WeightFormat kFormat>
__global__ void __launch_bounds__(128) pack_quantized(const PackArguments args) {
  constexpr uint32_t kWords = kFormat == WeightFormat::q8_0 ? 8 : 4;
  const uint32_t index = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t blocks = args.shape.blocks();
  if (index >= args.shape.tiles() * blocks) return;
  const uint32_t tile = index / blocks, k_block = index % blocks, group_index = k_block * 4 + lane % 4;
  uint8_t* block = args.destination + size_t(index) * block_bytes(kFormat);
  for (uint32_t half = 0; half < 2; ++half) {
    const uint8_t* row = source_row(args, tile * kTileRows + half * 8 + lane / 4);
    Group group;
    if (row != nullptr && group_index * kGroupK < args.shape.cols)
      group = read_group<kFormat>(row, group_index);
    uint32_t words[kWords] = {};
#pragma unroll
    for (uint32_t i = 0; i < kGroupK; ++i) {
      const uint32_t j = i / 4, e = i % 4, code = group.codes[i];
      if constexpr (kWords == 8) {
        words[j] |= code << (8 * e);
      } else {
        words[j / 2] |= code << ((j % 2 * 2 + e / 2) * 4 + e % 2 * 16);
      }
    }
#pragma unroll
    for (uint32_t w = 0; w < kWords; w += 4) {
      *reinterpret_cast<uint4*>(block + (half * (kWords / 4) + w / 4) * 512 + lane * 16) =
          make_uint4(words[w], words[w + 1], words[w + 2], words[w + 3]);
    }
    uint16_t* scale =
        reinterpret_cast<uint16_t*>(block + kWords * 256 + lane * (kFormat == WeightFormat::q4_k ? 8 : 4)) +
        half;
    scale[0] = group.scale;
    if constexpr (kFormat == WeightFormat::q4_k) scale[2] = group.min;
  }
}

template <DType kType>
__device__ uint16_t load_as_bf16(const uint8_t* row, uint32_t k) {
  if constexpr (kType == DType::f32) return as_bf16(reinterpret_cast<const float*>(row)[k]);
  if constexpr (kType == DType::f16) return as_bf16(load_f16(row + 2 * k));
  return reinterpret_cast<const uint16_t*>(row)[k];
}

// A thread packs 8 numbers that lie together.
template <DType kType>
__global__ void __launch_bounds__(256) pack_plain(const PackArguments args) {
  const size_t index = size_t(blockIdx.x) * 256 + threadIdx.x;  // of 16 bytes
  const size_t block_index = index / 256, blocks = args.shape.blocks();
  if (block_index >= args.shape.tiles() * blocks) return;
  // [k / 64][row / 8][k / 8][row]
  const uint32_t in_block = index % 256;
  const uint32_t row_in_tile = in_block / 64 % 2 * 8 + in_block % 8;
  const uint32_t first_position = in_block / 128 * 64 + in_block / 8 % 8 * 8;
  const uint8_t* row = source_row(args, uint32_t(block_index / blocks) * kTileRows + row_in_tile);
  const uint32_t first_k = uint32_t(block_index % blocks) * kBlockK;
  uint32_t words[4] = {};
  for (uint32_t i = 0; i < 8 && row != nullptr; ++i) {
    const uint32_t k = first_k + k_at(first_position + i);
    if (k < args.shape.cols) words[i / 2] |= uint32_t(load_as_bf16<kType>(row, k)) << (i % 2 * 16);
  }
  reinterpret_cast<uint4*>(args.destination)[index] = make_uint4(words[0], words[1], words[2], words[3]);
}

// A thread writes a piece of 16 bytes.
__global__ void __launch_bounds__(256)
    write_pieces(const float* rows, size_t stride, uint32_t tokens, uint32_t cols, uint8_t* destination) {
  const size_t index = size_t(blockIdx.x) * 256 + threadIdx.x;
  const uint32_t piece = index % 8, token = index / 8 % tokens, part = uint32_t(index / 8 / tokens);
  if (part >= round_up(cols, kBlockK) / 64) return;
  float values[8];
  for (uint32_t i = 0; i < 8; ++i) {
    const uint32_t k = part / 2 * kBlockK + k_at(part % 2 * 64 + piece * 8 + i);
    values[i] = k < cols ? rows[token * stride + k] : 0.0f;
  }
  uint8_t* row = destination + (size_t(part) * tokens + token) * kActivationRowBytes;
  *reinterpret_cast<uint4*>(row + (piece ^ token % 8) * 16) =
      make_uint4(ptx::pack_bf16(values[0], values[1]), ptx::pack_bf16(values[2], values[3]),
                 ptx::pack_bf16(values[4], values[5]), ptx::pack_bf16(values[6], values[7]));
}

template <WeightFormat kFormat>
void launch_pack_quantized(const PackArguments& args, cudaStream_t stream) {
  const uint32_t blocks = args.shape.tiles() * args.shape.blocks();
  launch(pack_quantized<kFormat>, {(blocks + 3) / 4, 128}, Overlap::none, stream, args);
}

template <DType kType>
void launch_pack_plain(const PackArguments& args, cudaStream_t stream) {
  launch(pack_plain<kType>, {args.shape.tiles() * args.shape.blocks(), 256}, Overlap::none, stream, args);
}

}  // namespace

void pack_on_device(const WeightShape& shape, DType dtype, const uint8_t* source, const uint32_t* order,
                    uint8_t* destination, cudaStream_t stream) {
  const PackArguments args = {shape, source, row_bytes(dtype, shape.cols), order, destination};
  switch (dtype) {
    case DType::q8_0:
      return launch_pack_quantized<WeightFormat::q8_0>(args, stream);
    case DType::q4_0:
      return launch_pack_quantized<WeightFormat::q4_0>(args, stream);
    case DType::q4_k:
      return launch_pack_quantized<WeightFormat::q4_k>(args, stream);
    case DType::f32:
      return launch_pack_plain<DType::f32>(args, stream);
    case DType::f16:
      return launch_pack_plain<DType::f16>(args, stream);
    case DType::bf16:
      return launch_pack_plain<DType::bf16>(args, stream);
    default:
      CHECK(false);
  }
}

void write_activations_on_device(const float* rows, size_t stride, uint32_t tokens, uint32_t cols,
                                 uint8_t* destination, cudaStream_t stream) {
  const size_t pieces = activation_bytes(tokens, cols) / 16;
  launch(write_pieces, {unsigned((pieces + 255) / 256), 256}, Overlap::none, stream, rows, stride, tokens,
         cols, destination);
}

}  // namespace quire::cuda
