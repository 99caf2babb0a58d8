#include <algorithm>
#include <vector>

#include "backend/cpu/scalar/matmul.h"
#include "tensor/block_formats.h"

namespace quire::scalar {
namespace {

constexpr size_t kTileTokens = 4;    // share a row's codes while these are in registers
constexpr size_t kTileRows = 4;      // share an input in the same way
constexpr size_t kChunkTokens = 64;  // share a row's unpacking; their inputs stay in the second-level cache

template <size_t kCount>
int32_t dot_codes(const int8_t* codes, const int8_t* values) {
  int32_t sum = 0;
#if defined(__clang__)  // would unroll the loop and then not find the vectors in it
#pragma clang loop unroll(disable) vectorize(enable)
#endif
  for (size_t i = 0; i < kCount; ++i) sum += int32_t(codes[i]) * int32_t(values[i]);
  return sum;
}

template <class Format>
float block_term(const Codes32& weight, const Q8Row& input, size_t b) {
  const float scale = input.scales[b];
  const int32_t dot = dot_codes<32>(weight.codes, input.values + 32 * b);
  const float term = (weight.scale * scale) * float(dot);
  if constexpr (!Format::kHasOffset) return term;
  return term + (weight.offset * scale) * float(input.sums[b]);
}

template <class Format>
float block_term(const Codes256& weight, const Q8Row& input, size_t b) {
  constexpr size_t kSub = Format::kSubValues;
  const float scale = input.scales[b];
  const int8_t* values = input.values + 256 * b;
  int32_t dot = 0;
  for (size_t j = 0; j < 256 / kSub; ++j) {
    dot += dot_codes<kSub>(weight.codes + j * kSub, values + j * kSub) * int32_t(weight.sub_scales[j]);
  }
  const float term = (weight.scale * scale) * float(dot);
  if constexpr (!Format::kHasMin) return term;
  const int16_t* sums = input.sums + 16 * b;
  int32_t min = 0;
  for (size_t j = 0; j < 256 / kSub; ++j) {
    const int32_t sum = kSub == 16 ? sums[j] : sums[2 * j] + sums[2 * j + 1];
    min += int32_t(weight.sub_mins[j]) * sum;
  }
  return term - (weight.min_scale * scale) * float(min);
}

// Products of kRows unpacked rows, one after the other, with kTokens inputs: enough of them side by side to
// keep the machine busy, each computed as it would be alone.
template <class Format, size_t kRows, size_t kTokens, class Codes>
void dot_tile(const Codes* rows, size_t blocks, const std::byte* input, size_t stride, float* out,
              size_t out_stride) {
  const size_t n = blocks * Format::kValues;
  float sums[kRows][kTokens] = {};
  for (size_t b = 0; b < blocks; ++b) {
    for (size_t r = 0; r < kRows; ++r) {
      for (size_t t = 0; t < kTokens; ++t) {
        const Q8Row row(input + t * stride, n, Format::kValues);
        sums[r][t] += block_term<Format>(rows[r * blocks + b], row, b);
      }
    }
  }
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t t = 0; t < kTokens; ++t) out[t * out_stride + r] = sums[r][t];
  }
}

// kRows rows from row `r` on with tokens [begin, end).
template <class Format, class Codes, size_t kRows>
void matmul_rows(const MatmulArgs& args, size_t r, size_t begin, size_t end, std::vector<Codes>& rows) {
  const size_t blocks = args.weight.cols / Format::kValues;
  rows.resize(kRows * blocks);
  const uint8_t* bytes = reinterpret_cast<const uint8_t*>(args.weight.row(r));
  for (size_t i = 0; i < kRows * blocks; ++i) Format::unpack(bytes + i * Format::kBytes, rows[i]);

  const size_t stride = args.input_stride_bytes;
  float* out = args.out + r;
  size_t t = begin;
  for (; t + kTileTokens <= end; t += kTileTokens) {
    for (size_t k = 0; k < kRows; ++k) {
      dot_tile<Format, 1, kTileTokens>(rows.data() + k * blocks, blocks, args.input + t * stride, stride,
                                       out + t * args.out_stride + k, args.out_stride);
    }
  }
  for (; t < end; ++t) {
    dot_tile<Format, kRows, 1>(rows.data(), blocks, args.input + t * stride, stride,
                               out + t * args.out_stride, args.out_stride);
  }
}

template <class Format, class Codes>
void matmul(const MatmulArgs& args) {
  thread_local std::vector<Codes> rows;
  for (size_t begin = 0; begin < args.tokens; begin += kChunkTokens) {
    const size_t end = std::min(begin + kChunkTokens, args.tokens);
    size_t r = args.row_begin;
    for (; r + kTileRows <= args.row_end; r += kTileRows) {
      matmul_rows<Format, Codes, kTileRows>(args, r, begin, end, rows);
    }
    for (; r < args.row_end; ++r) matmul_rows<Format, Codes, 1>(args, r, begin, end, rows);
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
