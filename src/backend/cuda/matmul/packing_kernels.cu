#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "backend/cuda/launch.cuh"
#include "backend/cuda/matmul/packing_kernels.h"
#include "backend/cuda/ptx.cuh"

namespace quire::cuda {
namespace {

struct PackArguments {
  WeightShape shape;
  SourceRows source;
  size_t row_bytes;
  const uint32_t* order;
  uint8_t* destination;
};

// Where packed row `row` comes from; null where that is not among these rows.
__device__ const uint8_t* source_row(const PackArguments& args, uint32_t row) {
  if (row >= args.shape.rows) return nullptr;
  const uint32_t from = (args.order != nullptr ? args.order[row] : row) - args.source.first;
  return from < args.source.count ? args.source.data + from * args.row_bytes : nullptr;
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
  uint16_t scales[2] = {}, min = 0;  // of 16 each
  uint8_t codes[kGroupK] = {};
};

template <uint32_t kBytes>
__device__ void read_half_bytes(const uint8_t* bytes, Group& group) {
  for (uint32_t i = 0; i < kGroupK; ++i) group.codes[i] = bytes[i % kBytes] >> (i / kBytes * 4) & 15;
}

__device__ void read_q4_k(const uint8_t* block, uint32_t j, Group& group) {
  const uint8_t* packed = block + 4;  // 6-bit scales and minimums of eight groups
  uint32_t scale, min;
  if (j < 4) {
    scale = packed[j] & 63;
    min = packed[j + 4] & 63;
  } else {
    scale = (packed[j + 4] & 15) | packed[j - 4] >> 6 << 4;
    min = packed[j + 4] >> 4 | packed[j] >> 6 << 4;
  }
  group.scales[0] = stored_scale(load_f16(block) * float(scale));
  const float offset = __bfloat162float(__float2bfloat16_rn(load_f16(block + 2) * float(min)));
  group.min = as_bf16(-offset * kStoredMin);
  for (uint32_t i = 0; i < kGroupK; ++i) group.codes[i] = block[16 + j / 2 * 32 + i] >> (j % 2 * 4) & 15;
}

// Code 128 g + 32 p + i: half p / 2 of byte 64 g + 32 (p % 2) + i, and quarter p of byte 128 + 32 g + i.
__device__ void read_q6_k(const uint8_t* block, uint32_t j, Group& group) {
  const uint32_t g = j / 4, p = j % 4;
  for (uint32_t i = 0; i < 2; ++i) {
    group.scales[i] = stored_scale(load_f16(block + 208) * float(int8_t(block[192 + 2 * j + i])));
  }
  for (uint32_t i = 0; i < kGroupK; ++i) {
    const uint32_t low = block[64 * g + p % 2 * 32 + i] >> (p / 2 * 4) & 15;
    group.codes[i] = uint8_t(low | (block[128 + 32 * g + i] >> (2 * p) & 3) << 4);
  }
}

template <WeightFormat kFormat>
__device__ Group read_group(const uint8_t* row, uint32_t index) {
  Group group;
  if constexpr (kFormat == WeightFormat::q8_0) {
    const uint8_t* block = row + size_t(index) * 34;
    group.scales[0] = stored_scale(load_f16(block));
    for (uint32_t i = 0; i < kGroupK; ++i) group.codes[i] = uint8_t(block[2 + i] + 128);
  } else if constexpr (kFormat == WeightFormat::q4_0) {
    const uint8_t* block = row + size_t(index) * 18;
    group.scales[0] = stored_scale(load_f16(block));
    read_half_bytes<16>(block + 2, group);
  } else if constexpr (kFormat == WeightFormat::mxfp4) {
    const uint8_t* block = row + size_t(index) * 17;
    const uint32_t power = block[0];  // 2^(power - 127), whose lowest is subnormal
    const float scale = __uint_as_float(power == 0 ? 0x00400000u : power << 23);
    group.scales[0] = as_bf16(power == 255 ? __uint_as_float(0x7f800000u) : scale * kStoredPower);
    read_half_bytes<16>(block + 1, group);
  } else if constexpr (kFormat == WeightFormat::q4_k) {
    read_q4_k(row + size_t(index / 8) * 144, index % 8, group);
  } else {
    read_q6_k(row + size_t(index / 8) * 210, index % 8, group);
  }
  return group;
}

// A lane's bits of a row: 16 bytes of the formats of half bytes and of Q6_K, 32 of Q8_0; and the words of Q6_K's
// quarters.
template <WeightFormat kFormat>
struct RowBits {
  static constexpr uint32_t kWords = kFormat == WeightFormat::q8_0 ? 8 : 4;
  uint32_t words[kWords] = {};
  uint32_t quarters[2] = {};

  __device__ __forceinline__ explicit RowBits(const Group& group) {
#pragma unroll
    for (uint32_t k = 0; k < kGroupK; ++k) {
      const uint32_t j = k / 4, i = k % 4, code = group.codes[k];
      if constexpr (kFormat == WeightFormat::q8_0) {
        words[j] |= code << (8 * i);
      } else if constexpr (kFormat == WeightFormat::mxfp4) {
#pragma unroll
        for (uint32_t bit = 0; bit < 4; ++bit) words[j / 2] |= (code >> bit & 1) << mxfp4_bit(j % 2, i, bit);
      } else if constexpr (kFormat == WeightFormat::q6_k) {
        const uint32_t half_byte = i < 2 ? code & 15 : code >> 2, quarter = i < 2 ? code >> 4 : code & 3;
        words[j / 2] |= half_byte << half_byte_bit(j % 2, i, 0);
        quarters[j / 4] |= quarter << quarter_bit(j % 4, i, 0);
      } else {
        words[j / 2] |= code << half_byte_bit(j % 2, i, 0);
      }
    }
  }
};

// A warp packs a block: lane 4g + t has group t of rows g and g + 8.
template <WeightFormat kFormat>
__global__ void __launch_bounds__(128) pack_quantized(const PackArguments args) {
  constexpr uint32_t kWords = RowBits<kFormat>::kWords;
  const uint32_t index = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t blocks = args.shape.blocks();
  if (index >= args.shape.tiles() * blocks) return;
  const uint32_t tile = index / blocks, k_block = index % blocks, group_index = k_block * 4 + lane % 4;
  uint8_t* block = args.destination + size_t(index) * block_bytes(kFormat);
  for (uint32_t half = 0; half < 2; ++half) {
    const uint32_t row_in_tile = half * 8 + lane / 4;
    const uint8_t* row = source_row(args, tile * kTileRows + row_in_tile);
    if (row == nullptr) continue;
    Group group;
    if (group_index * kGroupK < args.shape.cols) group = read_group<kFormat>(row, group_index);
    const RowBits<kFormat> bits(group);
    if constexpr (kFormat == WeightFormat::q6_k) {
#pragma unroll
      for (uint32_t part = 0; part < 2; ++part) {
        uint8_t* to = block + part * 256 + lane * 8;
        *reinterpret_cast<uint2*>(to + half * 512) =
            make_uint2(bits.words[2 * part], bits.words[2 * part + 1]);
        *reinterpret_cast<uint32_t*>(to + 1024 + half * 4) = bits.quarters[part];
      }
    } else {
#pragma unroll
      for (uint32_t w = 0; w < kWords; w += 4) {
        *reinterpret_cast<uint4*>(block + (half * (kWords / 4) + w / 4) * 512 + lane * 16) =
            make_uint4(bits.words[w], bits.words[w + 1], bits.words[w + 2], bits.words[w + 3]);
      }
    }
    const auto scale = [&](uint32_t k) {
      return reinterpret_cast<uint16_t*>(block + scale_place(kFormat, row_in_tile, lane % 4 * kGroupK + k));
    };
    *scale(0) = group.scales[0];
    if constexpr (kFormat == WeightFormat::q4_k) scale(0)[2] = group.min;
    if constexpr (kFormat == WeightFormat::q6_k) *scale(16) = group.scales[1];
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
  if (row == nullptr) return;
  uint32_t words[4] = {};
  for (uint32_t i = 0; i < 8; ++i) {
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

void pack_on_device(const WeightShape& shape, const SourceRows& source, const uint32_t* order,
                    uint8_t* destination, cudaStream_t stream) {
  const PackArguments args = {shape, source, row_bytes(source.dtype, shape.cols), order, destination};
  switch (source.dtype) {
    case DType::q8_0:
      return launch_pack_quantized<WeightFormat::q8_0>(args, stream);
    case DType::q4_0:
      return launch_pack_quantized<WeightFormat::q4_0>(args, stream);
    case DType::q4_k:
      return launch_pack_quantized<WeightFormat::q4_k>(args, stream);
    case DType::q6_k:
      return launch_pack_quantized<WeightFormat::q6_k>(args, stream);
    case DType::mxfp4:
      return launch_pack_quantized<WeightFormat::mxfp4>(args, stream);
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
