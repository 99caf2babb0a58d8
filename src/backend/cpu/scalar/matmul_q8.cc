#include <algorithm>
#include <vector>

#include "backend/cpu/scalar/matmul.h"
#include "tensor/block_formats.h"

namespace quire::scalar {
namespace {

constexpr size_t kTokens = 4;        // share a row's codes while these are in registers or the nearest cache
constexpr size_t kChunkTokens = 64;  // share a row's unpacking; their inputs stay in the second-level cache

int32_t dot_codes(const int8_t* codes, const int8_t* values, size_t count) {
  int32_t sum = 0;
  for (size_t i = 0; i < count; ++i) sum += int32_t(codes[i]) * int32_t(values[i]);
  return sum;
}

template <class Format>
float block_term(const Codes32& weight, const Q8Row& input, size_t b) {
  const float scale = input.scales[b];
  const int32_t dot = dot_codes(weight.codes, input.values + 32 * b, 32);
  const float term = (weight.scale * scale) * float(dot);
  if constexpr (!Format::kHasOffset) return term;
  return term + (weight.offset * scale) * float(input.sums[b]);
}

template <class Format>
float block_term(const Codes256& weight, const Q8Row& input, size_t b) {
  constexpr size_t kSub = Format::kSubValues;
  const float scale = input.scales[b];
  const int8_t* values = input.values + 256 * b;
  int32_t lanes[8] = {};
  for (size_t j = 0; j < 256 / kSub; ++j) {
    for (size_t i = 0; i < kSub; i += 16) {
      for (size_t k = 0; k < 8; ++k) {
        // Two products of int8 always fit in 16 bits, as activations do not reach -128.
        const int8_t* c = weight.codes + j * kSub + i + k;
        const int8_t* v = values + j * kSub + i + k;
        const int16_t pair = int16_t(c[0] * v[0] + c[8] * v[8]);
        lanes[k] += int32_t(pair) * int32_t(weight.sub_scales[j]);
      }
    }
  }
  int32_t dot = 0;
  for (int32_t lane : lanes) dot += lane;
  const float term = (weight.scale * scale) * float(dot);
  if constexpr (!Format::kHasMin) return term;
  const int16_t* sums = input.sums + 16 * b;
  int32_t min = 0;
  for (size_t i = 0; i < 16; ++i) min += int32_t(weight.sub_mins[i * 16 / kSub]) * int32_t(sums[i]);
  return term - (weight.min_scale * scale) * float(min);
}

template <class Format, size_t kCount, class Codes>
void dot_tokens(const std::vector<Codes>& weight, const std::byte* input, size_t stride, float* out,
                size_t out_stride) {
  constexpr size_t kGroup = Format::kValues;
  const size_t n = weight.size() * kGroup;
  float sums[kCount] = {};
  for (size_t b = 0; b < weight.size(); ++b) {
    for (size_t t = 0; t < kCount; ++t) {
      sums[t] += block_term<Format>(weight[b], Q8Row(input + t * stride, n, kGroup), b);
    }
  }
  for (size_t t = 0; t < kCount; ++t) out[t * out_stride] = sums[t];
}

template <class Format, class Codes>
void matmul(const MatmulArgs& args) {
  thread_local std::vector<Codes> row;
  row.resize(args.weight.cols / Format::kValues);
  const size_t stride = args.input_stride_bytes;
  for (size_t begin = 0; begin < args.tokens; begin += kChunkTokens) {
    const size_t end = std::min(begin + kChunkTokens, args.tokens);
    for (size_t r = args.row_begin; r < args.row_end; ++r) {
      const uint8_t* block = reinterpret_cast<const uint8_t*>(args.weight.row(r));
      for (Codes& codes : row) {
        Format::unpack(block, codes);
        block += Format::kBytes;
      }
      size_t t = begin;
      float* out = args.out + r;
      for (; t + kTokens <= end; t += kTokens) {
        dot_tokens<Format, kTokens>(row, args.input + t * stride, stride, out + t * args.out_stride,
                                    args.out_stride);
      }
      for (; t < end; ++t) {
        dot_tokens<Format, 1>(row, args.input + t * stride, stride, out + t * args.out_stride,
                              args.out_stride);
      }
    }
  }
}

}  // namespace

template <class Format>
void matmul_q8_32(const MatmulArgs& args) {
  matmul<Format, Codes32>(args);
}

template <class Format>
void matmul_q8_256(const MatmulArgs& args) {
  matmul<Format, Codes256>(args);
}

template void matmul_q8_32<format::Q4_0>(const MatmulArgs&);
template void matmul_q8_32<format::Q4_1>(const MatmulArgs&);
template void matmul_q8_32<format::Q5_0>(const MatmulArgs&);
template void matmul_q8_32<format::Q5_1>(const MatmulArgs&);
template void matmul_q8_32<format::Q8_0>(const MatmulArgs&);
template void matmul_q8_32<format::Iq4Nl>(const MatmulArgs&);
template void matmul_q8_32<format::Mxfp4>(const MatmulArgs&);
template void matmul_q8_256<format::Q2_K>(const MatmulArgs&);
template void matmul_q8_256<format::Q3_K>(const MatmulArgs&);
template void matmul_q8_256<format::Q4_K>(const MatmulArgs&);
template void matmul_q8_256<format::Q5_K>(const MatmulArgs&);
template void matmul_q8_256<format::Q6_K>(const MatmulArgs&);
template void matmul_q8_256<format::Iq4Xs>(const MatmulArgs&);

}  // namespace quire::scalar
