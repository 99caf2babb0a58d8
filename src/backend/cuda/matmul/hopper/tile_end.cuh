#pragma once

#include "backend/cuda/matmul/dequantize.cuh"
#include "backend/cuda/matmul/epilogue.cuh"
#include "backend/cuda/matmul/product_plan.h"
#include "backend/cuda/matmul/ptx_hopper.cuh"

// How tiles of the tile product end: what `finish` of epilogue.cuh writes, with the same bits, for many tokens at a time. While
// a tile ends nobody multiplies, so nothing here waits for memory more often than it must: what is read is read in batches,
// and activations leave through shared memory in one copy that runs on while the next tile is multiplied.

namespace quire::cuda {

struct TilePlace {
  uint32_t first_row;  // of 128
  uint32_t rows;       // of the weight: what is at or above is padding
  uint32_t first_token;
  uint32_t tokens;  // of the step
};

// Sums over the rows of a tile of 16, of eight tokens each lane: value i of lane 4g + t belongs to some token (i, t) and is the
// sum of rows g and g + 8. A lane is left with the sum of all rows for i = g; added in the order of TwoRowsPerLane::sum, but
// with 7 exchanges instead of 24.
__device__ __forceinline__ float sum_rows(float (&values)[8], uint32_t lane) {
#pragma unroll
  for (uint32_t half = 4, apart = 16; half > 0; half /= 2, apart /= 2) {
    const bool upper = (lane & apart) != 0;
#pragma unroll
    for (uint32_t i = 0; i < half; ++i) {
      const float mine = upper ? values[i + half] : values[i], other = upper ? values[i] : values[i + half];
      values[i] = __fadd_rn(mine, __shfl_xor_sync(~0u, other, apart));
    }
  }
  return values[0];
}

// Of two neighbouring rows, bf16 of two tokens each (lanes 4 apart), the two rows of one token: the first for an even row.
__device__ __forceinline__ uint32_t rows_of_token(uint32_t tokens_of_row, bool odd_row) {
  const uint32_t other = __shfl_xor_sync(~0u, tokens_of_row, 4);
  return odd_row ? __byte_perm(other, tokens_of_row, 0x7632) : __byte_perm(tokens_of_row, other, 0x5410);
}

// Used by the two warpgroups that multiply; each function by all of their threads together.
template <uint32_t kTokens>
class TileEnd {
 public:
  static constexpr uint32_t kEights = kTokens / 8;

  // `shared`: where tile_end_bytes of shared memory are. To be made where it is used: the assembly hides from the compiler that
  // the thread's number is always the same, so that it keeps nothing of this in registers while a tile is multiplied.
  __device__ __forceinline__ explicit TileEnd(uint32_t shared) : staging_(shared) {
    uint32_t thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    warp_ = thread / 32;
    lane_ = thread % 32;
  }

  // Once, for all tiles, where tokens have no scales.
  __device__ __forceinline__ void make_ones() const {
    static_assert(kTokens <= kWarps * 32);
    if (threadIdx.x < kTokens) scales()[threadIdx.x] = 1.0f;
    meet();
  }

  // At the begin of a tile: its scales come while it is multiplied.
  __device__ __forceinline__ void fetch_scales(const float* source, uint32_t first_token,
                                               uint32_t tokens) const {
    if (threadIdx.x >= kTokens / 4) return;
    const uint32_t first = first_token + threadIdx.x * 4;
    float* to = scales() + threadIdx.x * 4;
    if (source != nullptr) {
      ptx::commit_copies();  // of a tile that another block finished
      ptx::wait_copies<0>();
      const uint32_t count = first < tokens ? min(tokens - first, 4u) : 0;
      ptx::copy_16_async(ptx::shared_address(to), source + (count > 0 ? first : 0), count * 4);
    } else {
      *reinterpret_cast<float4*>(to) = make_float4(1, 1, 1, 1);
    }
  }

  template <WeightFormat kFormat>
  __device__ __forceinline__ void finish(const StoreParts& output, const TilePlace& place,
                                         const float (&total)[kTokens / 2]) const {
    const uint32_t tile_row = place.first_row + warp_ * kTileRows, row = tile_row + lane_ / 4;
    const FoundPart part = part_of(output, tile_row);
    const bool exists[2] = {row < place.rows, row + 8 < place.rows};
    float bias[2];
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
      bias[i] = part.bias != nullptr && exists[i] ? part.bias[row - part.begin + 8 * i] : kNothing;
    }
    float* at = part.out + first_token(place) * part.stride + row - part.begin;
    const int left = tokens_left(place);
    await_scales();
#pragma unroll
    for (uint32_t j = 0; j < kEights; ++j, at += 8 * part.stride) {
      const float2 scales = scales_of(j);
#pragma unroll
      for (uint32_t c = 0; c < 2; ++c) {
        if (int(8 * j + c) >= left) continue;
        float* of_token = at + c * part.stride;
#pragma unroll
        for (uint32_t i = 0; i < 2; ++i) {
          const float y = undo_stored_weight<kFormat>(total[4 * j + 2 * i + c]);
          if (exists[i]) of_token[8 * i] = __fadd_rn(__fmul_rn(y, c == 0 ? scales.x : scales.y), bias[i]);
        }
      }
    }
    forget_scales();
  }

  template <WeightFormat kFormat>
  __device__ __forceinline__ void finish(const AddToResidual& output, const TilePlace& place,
                                         const float (&total)[kTokens / 2]) const {
    // Eights of tokens whose residuals are fetched at a time: as many as registers allow.
    constexpr uint32_t kBatch = kTokens == 64 || kTokens == 128 ? 8 : 4;
    static_assert(kEights % kBatch == 0 && kBatch % 4 == 0);
    const uint32_t tile_row = place.first_row + warp_ * kTileRows, row = tile_row + lane_ / 4;
    const bool exists[2] = {row < place.rows, row + 8 < place.rows};
    float bias[2], gain[2];
    uint8_t* next[2];
    const uint32_t odd = lane_ / 4 % 2;
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
      bias[i] = output.bias != nullptr && exists[i] ? output.bias[row + 8 * i] : kNothing;
      gain[i] = exists[i] ? output.gain[row + 8 * i] : 0.0f;
      next[i] = output.next.data +
                activation_place(output.next.tokens, first_token(place) + odd, (row - odd) + 8 * i);
    }
    float* at = output.residual + first_token(place) * output.stride + row;
    const size_t eight = 8 * output.stride;
    const int left = tokens_left(place);
#pragma unroll
    for (uint32_t first = 0; first < kEights; first += kBatch) {
      float x[kBatch][2][2];  // [eight][token][row]
      const float* from = at;
#pragma unroll
      for (uint32_t j = 0; j < kBatch; ++j, from += eight) {
#pragma unroll
        for (uint32_t c = 0; c < 2; ++c) {
          const bool valid = int(8 * (first + j) + c) < left;
#pragma unroll
          for (uint32_t i = 0; i < 2; ++i) {
            x[j][c][i] = valid && exists[i] ? __ldcg(from + c * output.stride + 8 * i) : 0.0f;
          }
        }
      }
      // Addresses are computed again for the stores: to keep them would take too many registers.
      asm volatile("" : "+l"(at));
#pragma unroll
      for (uint32_t j = 0; j < kBatch; ++j, at += eight) {
#pragma unroll
        for (uint32_t c = 0; c < 2; ++c) {
          const bool valid = int(8 * (first + j) + c) < left;
#pragma unroll
          for (uint32_t i = 0; i < 2; ++i) {
            const float y = undo_stored_weight<kFormat>(total[4 * (first + j) + 2 * i + c]);
            const float more = __fmul_rn(output.factor, __fadd_rn(y, bias[i]));
            if (exists[i]) x[j][c][i] = __fadd_rn(x[j][c][i], more);
            if (valid && exists[i]) at[c * output.stride + 8 * i] = x[j][c][i];
          }
        }
#pragma unroll
        for (uint32_t i = 0; i < 2; ++i) {  // rows beyond the last are the activations' padding
          const uint32_t two = rows_of_token(
              ptx::pack_bf16(__fmul_rn(x[j][0][i], gain[i]), __fmul_rn(x[j][1][i], gain[i])), odd != 0);
          if (int(8 * (first + j) + odd) < left) {
            *reinterpret_cast<uint32_t*>(next[i] + (first + j) * 8 * kActivationRowBytes) = two;
          }
        }
      }
#pragma unroll
      for (uint32_t j = 0; j < kBatch; j += 4) {
        float squares[8];
#pragma unroll
        for (uint32_t i = 0; i < 8; ++i) {
          const float(&rows)[2] = x[j + i / 2][i % 2];
          squares[i] = __fadd_rn(__fmul_rn(rows[0], rows[0]), __fmul_rn(rows[1], rows[1]));
        }
        const float sum = sum_rows(squares, lane_);
        const uint32_t mine = lane_ / 4;
        const uint32_t token = first_token(place) + (first + j + mine / 2) * 8 + mine % 2;
        if (token < place.tokens && tile_row < place.rows) {
          output.squares[size_t(token) * output.square_count + tile_row / kTileRows] = sum;
        }
      }
    }
  }

  template <WeightFormat kFormat>
  __device__ __forceinline__ void finish(const GatedUnit& output, const TilePlace& place,
                                         const float (&total)[kTokens / 2]) const {
    const NextActivations& next = output.next;
    const uint32_t first_pair = place.first_row / 2, pair = first_pair + warp_ * 8 + lane_ / 4;
    const uint32_t column = gated_column(pair, next.cols);
    const bool exists = pair < next.cols;
    const float gate_bias = output.gate_bias != nullptr && exists ? output.gate_bias[column] : kNothing;
    const float up_bias = output.up_bias != nullptr && exists ? output.up_bias[column] : kNothing;
    if (threadIdx.x == 0) ptx::wait_bulk_read();  // of the tile before
    await_scales();
    const uint32_t to = staging_ + lane_ * kActivationRowBytes + ((warp_ ^ lane_ % 8) * 16);
#pragma unroll
    for (uint32_t j = 0; j < kEights; j += 4) {
      uint32_t packed[4];
#pragma unroll
      for (uint32_t part = 0; part < 4; part += 2) {
        float gates[4], ups[4];
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) {
          const uint32_t eight = j + part + i / 2;
          const float2 scales = scales_of(eight);
          const float scale = i % 2 == 0 ? scales.x : scales.y;
          const float gate = undo_stored_weight<kFormat>(total[4 * eight + i % 2]);
          const float up = undo_stored_weight<kFormat>(total[4 * eight + 2 + i % 2]);
          gates[i] = __fadd_rn(__fmul_rn(gate, scale), gate_bias);
          ups[i] = __fadd_rn(__fmul_rn(up, scale), up_bias);
        }
        gate_all(output.function, gates, ups);
        packed[part] = ptx::pack_bf16(gates[0], gates[1]);
        packed[part + 1] = ptx::pack_bf16(gates[2], gates[3]);
      }
      ptx::store_matrices_transposed(to + j * 8 * kActivationRowBytes, packed);
    }
    const uint32_t count = min(kTokens, place.tokens - place.first_token);
    if (in_whole_block(
            first_pair,
            next.cols)) {  // the staged rows are 64 positions of each token, side by side in memory
      ptx::publish_to_copies();
      meet();
      if (threadIdx.x == 0) {
        const size_t first = size_t(first_pair / 64) * next.tokens + place.first_token;
        ptx::copy_bulk_out(next.data + first * kActivationRowBytes, staging_, count * kActivationRowBytes);
      }
    } else {
      meet();
      store_rest(next, place, first_pair, count);
    }
  }

  // Before the block ends.
  __device__ __forceinline__ void leave() const {
    if (threadIdx.x == 0) ptx::wait_bulk_written();
  }

 private:
  static constexpr uint32_t kWarps = 8;
  static constexpr float kNothing = -0.0f;  // the only number that adding to changes nothing, not even 0

  __device__ __forceinline__ static void meet() {
    ptx::meet(3, kWarps * 32);
  }

  __device__ __forceinline__ uint32_t first_token(const TilePlace& place) const {
    return place.first_token + lane_ % 4 * 2;
  }
  __device__ __forceinline__ int tokens_left(const TilePlace& place) const {
    return int(place.tokens) - int(first_token(place));
  }

  __device__ __forceinline__ float2 scales_of(uint32_t eight) const {
    return reinterpret_cast<const float2*>(scales())[eight * 4 + lane_ % 4];
  }
  __device__ __forceinline__ static void await_scales() {
    ptx::commit_copies();
    ptx::wait_copies<0>();
    meet();
  }
  __device__ __forceinline__ static void forget_scales() {
    meet();
  }

  // What is left behind the last whole block, in the order of columns, and the padding.
  __device__ __forceinline__ void store_rest(const NextActivations& next, const TilePlace& place,
                                             uint32_t first_pair, uint32_t count) const {
    const uint32_t end = first_pair + 64 < next.cols ? first_pair + 64 : round_up(next.cols, kBlockK);
    const uint32_t wide = end - first_pair;
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < count * wide; i += kWarps * 32) {
      const uint32_t token = i / wide, slot = i % wide, piece = (slot / 8) ^ (token % 8);
      const bool exists = first_pair + slot < next.cols;
      const auto* from = reinterpret_cast<const uint16_t*>(staged() + token * kActivationRowBytes);
      *activation_at(next, place.first_token + token, first_pair + slot) =
          exists ? from[piece * 8 + slot % 8] : uint16_t{0};
    }
  }

  __device__ __forceinline__ uint8_t* staged() const {
    extern __shared__ uint8_t shared[];
    return shared + (staging_ - ptx::shared_address(shared));
  }
  __device__ __forceinline__ float* scales() const {
    return reinterpret_cast<float*>(staged() + kTokens * kActivationRowBytes);
  }
  uint32_t staging_;
  uint32_t warp_, lane_;
};

}  // namespace quire::cuda
