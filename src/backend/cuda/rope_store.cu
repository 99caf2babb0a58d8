#include "backend/cuda/attention/kv_row_codes.cuh"
#include "backend/cuda/attention/kv_row_numbers.h"
#include "backend/cuda/device_math.h"
#include "backend/cuda/lane_sums.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/operations.h"
#include "backend/cuda/ptx.cuh"

namespace quire::cuda {
namespace {

constexpr uint32_t kWarps = 8;
constexpr uint32_t kUsualDim = 256, kMostDim = 512, kLatentDim = 640;  // of a head

__global__ void rope_angles(const DeviceRopeTable params, const uint32_t* positions) {
  ptx::follow_kernel_before();
  for (uint32_t i = threadIdx.x; i < params.pairs; i += blockDim.x) {
    const double angle = double(positions[blockIdx.x]) * double(params.inverse_frequencies[i]);
    params.cos[blockIdx.x * size_t(params.pairs) + i] = float(cos(angle) * double(params.scale));
    params.sin[blockIdx.x * size_t(params.pairs) + i] = float(sin(angle) * double(params.scale));
  }
}

// Of the pairs lane, lane + 32, ...: loaded before anything else waits for memory.
template <uint32_t kDim>
struct Angles {
  static constexpr uint32_t kLanePairs = kDim / 64;
  float cos[kLanePairs] = {}, sin[kLanePairs] = {};

  __device__ __forceinline__ Angles(const DeviceRopeTable& table, uint32_t token) {
    if (table.cos == nullptr) return;
#pragma unroll
    for (uint32_t j = 0; j < kLanePairs; ++j) {
      const uint32_t pair = threadIdx.x % 32 + 32 * j;
      if (pair >= table.pairs) continue;
      cos[j] = table.cos[size_t(token) * table.pairs + pair];
      sin[j] = table.sin[size_t(token) * table.pairs + pair];
    }
  }
};

// What the queries or keys of a row are normed by.
struct HeadNorm {
  DeviceNorm norm;
  uint32_t width;    // what it is over
  uint32_t weights;  // how many it has

  // Of value i of the head that begins at `begin`, in rows of `row_width`.
  __device__ __forceinline__ float apply(float x, float mean, float scale, uint32_t at) const {
    float value = (x - mean) * scale;
    if (norm.weight != nullptr) value *= norm.weight[at];
    return norm.bias == nullptr ? value : value + norm.bias[at];
  }
};

// What a warp works on: one head of one token, of at most kDim values.
template <uint32_t kDim>
struct HeadRow {
  static constexpr uint32_t kLaneValues = kDim / 32;

  const float* row;  // all heads of the token
  uint32_t width;    // of all heads
  uint32_t begin, dim;
  float* values;  // shared memory, [dim]
  const uint32_t lane = threadIdx.x % 32;

  // Where the head's weights begin: those of a head serve all of them.
  __device__ __forceinline__ uint32_t first_weight(const HeadNorm& by) const {
    return by.weights == width ? begin : 0;
  }

  // As `load` does, of what is in `values` already. REQUIRES: a norm over the head.
  __device__ __forceinline__ void norm_again(const HeadNorm& by) const {
    if (by.norm.kind == NormKind::none) return;
    float mean = 0;
    if (by.norm.kind == NormKind::layer)
      mean = sum_in_lanes(dim, [&](uint32_t i) { return values[i]; }) / float(dim);
    const float squares = sum_in_lanes(dim, [&](uint32_t i) {
      const float x = values[i] - mean;
      return x * x;
    });
    const float scale = 1.0f / square_root(squares / float(dim) + by.norm.epsilon);
    __syncwarp();
    for (uint32_t i = lane; i < dim; i += 32)
      values[i] = by.apply(values[i], mean, scale, first_weight(by) + i);
    __syncwarp();
  }

  __device__ __forceinline__ void multiply(float factor) const {
    for (uint32_t i = lane; i < dim; i += 32) values[i] *= factor;
    __syncwarp();
  }

  __device__ __forceinline__ void load(const HeadNorm& by) const {
    const DeviceNorm& norm = by.norm;
    const uint32_t norm_width = by.width;
    float held[kLaneValues];
#pragma unroll
    for (uint32_t j = 0; j < kLaneValues; ++j) {
      if (lane + 32 * j < dim) held[j] = row[begin + lane + 32 * j];
    }
    float mean = 0, scale = 1;
    const uint32_t from = norm_width == width ? 0 : begin;
    if (norm.kind == NormKind::layer)
      mean = sum_in_lanes(norm_width, [&](uint32_t i) { return row[from + i]; }) / float(norm_width);
    if (norm.kind != NormKind::none) {
      const float squares = sum_in_lanes(norm_width, [&](uint32_t i) {
        const float x = row[from + i] - mean;
        return x * x;
      });
      scale = 1.0f / square_root(squares / float(norm_width) + norm.epsilon);
    }
#pragma unroll
    for (uint32_t j = 0; j < kLaneValues; ++j) {
      const uint32_t i = lane + 32 * j;
      if (i >= dim) continue;
      values[i] =
          norm.kind == NormKind::none ? held[j] : by.apply(held[j], mean, scale, first_weight(by) + i);
    }
    __syncwarp();
  }

  __device__ __forceinline__ void rotate(const DeviceRopeTable& table, const Angles<kDim>& angles,
                                         RopePairing pairing) const {
    if (table.cos == nullptr) return;
    const bool interleaved = pairing == RopePairing::interleaved;
#pragma unroll
    for (uint32_t j = 0; j < Angles<kDim>::kLanePairs; ++j) {
      const uint32_t i = lane + 32 * j;
      if (i >= table.pairs) continue;
      float& a = values[interleaved ? 2 * i : i];
      float& b = values[interleaved ? 2 * i + 1 : i + table.pairs];
      const float c = angles.cos[j], s = angles.sin[j], x = a, y = b;
      a = x * c - y * s;
      b = x * s + y * c;
    }
    __syncwarp();
  }
};

template <uint32_t kDim>
__device__ __forceinline__ void norm_and_rotate(const DeviceRopeStore& params, const HeadRow<kDim>& head,
                                                const HeadNorm& norm, const Angles<kDim>& angles) {
  const bool after = params.norm_order == HeadNormOrder::after_rotation;
  head.load(after ? HeadNorm{} : norm);
  head.rotate(params.table, angles, params.pairing);
  if (after) head.norm_again(norm);
}

template <uint32_t kDim>
__global__ void __launch_bounds__(32 * kWarps)
    norm_rotate_store(const DeviceRopeStore params, uint32_t rows_of_heads, const uint32_t* positions) {
  ptx::follow_kernel_before();
  __shared__ float values[kWarps][kDim];
  const uint32_t index = blockIdx.x * kWarps + threadIdx.x / 32;
  if (index >= rows_of_heads) return;
  const uint32_t heads = uint32_t(params.query.width) / params.head_dim, kv_heads = params.rows.kv_heads;
  const uint32_t all = params.key.data == nullptr ? heads : heads + 2 * kv_heads;
  const uint32_t token = index / all, which = index % all;
  float* own = values[threadIdx.x / 32];
  const uint32_t place = which < heads ? 0 : params.token_places[token];
  if (which < heads) {
    const Angles<kDim> angles(params.table, token);
    const HeadRow<kDim> head{params.query.data + token * params.query.stride, uint32_t(params.query.width),
                             which * params.head_dim, params.head_dim, own};
    norm_and_rotate(params, head, {params.query_norm, params.query_norm_width, params.query_norm_weights},
                    angles);
    const QueryTemperature& temperature = params.temperature;
    if (temperature.slope != 0) {
      const uint64_t steps = (uint64_t(positions[token]) + temperature.offset) / temperature.step;
      head.multiply(float(1 + double(temperature.slope) * log1p(double(steps))));
    }
    const auto leave = [&](uint32_t begin, uint32_t count, KvFormat format, HalfKind numbers) {
      const size_t at = (size_t(token) * heads + which) * params.head_dim + begin;
      if (is_turned(format)) turn(own + begin, count);  // as the keys are
      if (params.query_f32 != nullptr)
        store_floats(KvFormat::f32, own + begin, count, reinterpret_cast<std::byte*>(params.query_f32 + at));
      if (params.query_out != nullptr)
        store_floats(numbers == HalfKind::bf16 ? KvFormat::bf16 : KvFormat::f16, own + begin, count,
                     reinterpret_cast<std::byte*>(params.query_out + at));
    };
    const uint32_t key_dim = params.rows.key_dim;
    leave(0, key_dim, params.key_format, params.query_numbers);
    if (params.rows.key_goes_on)
      leave(key_dim, params.rows.value_dim, params.value_format, numbers_of(params.value_format));
    return;
  }
  const uint32_t page = place / params.rows.page_tokens, page_row = place % params.rows.page_tokens;
  const uint32_t kv_head = (which - heads) % kv_heads;
  if (which < heads + kv_heads) {
    const Angles<kDim> angles(params.table, token);
    const uint32_t dim = params.rows.key_dim;
    const HeadRow<kDim> head{params.key.data + token * params.key.stride, uint32_t(params.key.width),
                             kv_head * dim, dim, own};
    norm_and_rotate(params, head, {params.key_norm, params.key_norm_width, params.key_norm_weights}, angles);
    return store_kv_row(params.key_format, own, dim, params.rows.key_row(page, kv_head, page_row));
  }
  const uint32_t dim = params.rows.value_dim;
  const HeadRow<kDim> head{params.value.data + token * params.value.stride, uint32_t(params.value.width),
                           kv_head * dim, dim, own};
  head.load({});
  store_kv_row(params.value_format, own, dim, params.rows.value_row(page, kv_head, page_row));
}

// What most models ask for: no norms, a rotation of whole heads, rows of 16-bit numbers. A thread has four pairs, so that it waits
// for memory once: eight neighbours, or four of each half of a head.
struct FourPairs {
  float4 first, second;

  __device__ __forceinline__ FourPairs(const float* row, uint32_t apart)
      : first(*reinterpret_cast<const float4*>(row)), second(*reinterpret_cast<const float4*>(row + apart)) {}

  __device__ __forceinline__ void rotate(const float4& c, const float4& s, bool neighbours) {
    const auto turn = [](float& a, float& b, float cos, float sin) {
      const float x = a, y = b;
      a = x * cos - y * sin;
      b = x * sin + y * cos;
    };
    if (neighbours) {
      turn(first.x, first.y, c.x, s.x);
      turn(first.z, first.w, c.y, s.y);
      turn(second.x, second.y, c.z, s.z);
      turn(second.z, second.w, c.w, s.w);
    } else {
      turn(first.x, second.x, c.x, s.x);
      turn(first.y, second.y, c.y, s.y);
      turn(first.z, second.z, c.z, s.z);
      turn(first.w, second.w, c.w, s.w);
    }
  }

  __device__ __forceinline__ static uint2 halves(const float4& v, bool bf16) {
    if (bf16) return {ptx::pack_bf16(v.x, v.y), ptx::pack_bf16(v.z, v.w)};
    const auto two = [](float low, float high) {
      return uint32_t(__half_as_ushort(__float2half_rn(low))) |
             uint32_t(__half_as_ushort(__float2half_rn(high))) << 16;
    };
    return {two(v.x, v.y), two(v.z, v.w)};
  }

  __device__ __forceinline__ void store(void* row, uint32_t apart, bool bf16) const {
    auto* to = static_cast<uint16_t*>(row);
    *reinterpret_cast<uint2*>(to) = halves(first, bf16);
    *reinterpret_cast<uint2*>(to + apart) = halves(second, bf16);
  }
};

__global__ void __launch_bounds__(32 * kWarps)
    rotate_store(const DeviceRopeStore params, uint32_t rows_of_heads, uint32_t lanes) {
  ptx::follow_kernel_before();
  const uint32_t index = blockIdx.x * (32 * kWarps) + threadIdx.x;
  const uint32_t row = index / lanes, pair = index % lanes * 4, pairs = params.head_dim / 2;
  const bool neighbours = params.pairing == RopePairing::interleaved;
  const uint32_t at = neighbours ? 2 * pair : pair, apart = neighbours ? 4 : pairs;
  if (row >= rows_of_heads) return;
  const uint32_t heads = uint32_t(params.query.width) / params.head_dim, kv_heads = params.rows.kv_heads;
  const uint32_t all = params.key.data == nullptr ? heads : heads + 2 * kv_heads;
  const uint32_t token = row / all, which = row % all;
  const bool is_query = which < heads, is_key = !is_query && which < heads + kv_heads;
  const Rows& source = is_query ? params.query : is_key ? params.key : params.value;
  const uint32_t head = is_query ? which : (which - heads) % kv_heads;
  FourPairs four(source.data + token * source.stride + head * params.head_dim + at, apart);
  if (is_query || is_key) {
    const size_t angle = size_t(token) * pairs + pair;
    four.rotate(*reinterpret_cast<const float4*>(params.table.cos + angle),
                *reinterpret_cast<const float4*>(params.table.sin + angle), neighbours);
  }
  if (is_query) {
    uint16_t* to = params.query_out + (size_t(token) * heads + head) * params.head_dim + at;
    return four.store(to, apart, params.query_numbers == HalfKind::bf16);
  }
  const uint32_t place = params.token_places[token];
  const uint32_t page = place / params.rows.page_tokens, page_row = place % params.rows.page_tokens;
  std::byte* to =
      is_key ? params.rows.key_row(page, head, page_row) : params.rows.value_row(page, head, page_row);
  four.store(to + at * 2, apart, (is_key ? params.key_format : params.value_format) == KvFormat::bf16);
}

bool is_plain(const DeviceRopeStore& params) {
  const auto is_half = [](KvFormat format) { return format == KvFormat::bf16 || format == KvFormat::f16; };
  const auto aligned = [](const float* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; };
  const auto in_fours = [&](const Rows& rows) { return aligned(rows.data) && rows.stride % 4 == 0; };
  return params.query_norm.kind == NormKind::none && params.key_norm.kind == NormKind::none &&
         params.temperature.slope == 0 && params.table.cos != nullptr && params.head_dim % 8 == 0 &&
         params.table.pairs * 2 == params.head_dim && params.rows.value_dim == params.head_dim &&
         is_half(params.key_format) && is_half(params.value_format) && params.query_f32 == nullptr &&
         params.query_out != nullptr && aligned(params.table.cos) && aligned(params.table.sin) &&
         in_fours(params.query) && in_fours(params.key) && in_fours(params.value);
}

bool fits(const DeviceNorm& norm, const DeviceRopeStore& params, uint32_t norm_width, size_t width) {
  if (norm.kind == NormKind::none) return true;
  const bool after = params.norm_order == HeadNormOrder::after_rotation;
  return norm_width == params.head_dim || (norm_width == width && !after);
}

}  // namespace

void rope_table(const DeviceRopeTable& params, const DeviceTokens& tokens, cudaStream_t stream) {
  if (tokens.count == 0) return;
  launch(rope_angles, {.blocks = tokens.count, .threads = 64}, Overlap::with_kernel_before, stream, params,
         tokens.positions);
}

void rope_store(const DeviceRopeStore& params, const DeviceTokens& tokens, cudaStream_t stream) {
  const bool goes_on = params.rows.key_goes_on;
  CHECK(params.head_dim <= (goes_on ? kLatentDim : kMostDim) && params.rows.value_dim <= kMostDim &&
        params.rows.query_dim() == params.head_dim);
  CHECK(!goes_on || (params.query_norm.kind == NormKind::none && params.key_norm.kind == NormKind::none));
  CHECK(fits(params.query_norm, params, params.query_norm_width, params.query.width));
  CHECK(fits(params.key_norm, params, params.key_norm_width, params.key.width));
  if (tokens.count == 0) return;
  const uint32_t heads =
      uint32_t(params.query.width) / params.head_dim + (params.key ? 2 * params.rows.kv_heads : 0);
  if (is_plain(params)) {
    const uint32_t lanes = params.head_dim / 8, of_block = 32 * kWarps;
    launch(rotate_store,
           {.blocks = (tokens.count * heads * lanes + of_block - 1) / of_block, .threads = of_block},
           Overlap::with_kernel_before, stream, params, tokens.count * heads, lanes);
    return;
  }
  const bool is_usual = params.head_dim <= kUsualDim && params.rows.value_dim <= kUsualDim;
  launch(is_usual  ? norm_rotate_store<kUsualDim>
         : goes_on ? norm_rotate_store<kLatentDim>
                   : norm_rotate_store<kMostDim>,
         {.blocks = (tokens.count * heads + kWarps - 1) / kWarps, .threads = 32 * kWarps},
         Overlap::with_kernel_before, stream, params, tokens.count * heads, tokens.positions);
}

}  // namespace quire::cuda
