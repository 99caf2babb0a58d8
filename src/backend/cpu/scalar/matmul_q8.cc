#include <bit>
#include <cmath>
#include <vector>

#include "backend/cpu/scalar/matmul.h"
#include "backend/cpu/uniform_blocks.h"

namespace quire::scalar {
namespace {

constexpr size_t kChunkTokens = 64;  // share a row's unpacking; their inputs stay in the second-level cache

// A row of weights with its scales as the kernels use them.
template <class Format>
struct UniformRow {
  std::vector<int8_t> codes;
  std::vector<float> scales;  // one more: 0
  std::vector<float> mins;

  void unpack(const uint8_t* bytes, size_t cols) {
    using Block = UniformBlock<Format>;
    codes.resize(cols);
    scales.assign(cols / Block::kSub + 1, 0.0f);
    mins.resize(cols / Block::kSub);
    Block block;
    for (size_t b = 0; b < cols / Block::kValues; ++b) {
      block.unpack(bytes + b * Format::kBytes);
      constexpr size_t kSubs = Block::kValues / Block::kSub;
      std::memcpy(codes.data() + b * Block::kValues, block.codes, Block::kValues);
      std::memcpy(scales.data() + b * kSubs, block.scales, sizeof(block.scales));
      if constexpr (Block::kHasMin) std::memcpy(mins.data() + b * kSubs, block.mins, sizeof(block.mins));
    }
  }
};

template <size_t kSub>
int32_t dot_codes(const int8_t* codes, const int8_t* values) {
  int32_t sum = 0;
#if defined(__clang__)  // would unroll the loop and then not find the vectors in it
#pragma clang loop unroll(disable) vectorize(enable)
#endif
  for (size_t i = 0; i < kSub; ++i) sum += int32_t(codes[i]) * int32_t(values[i]);
  return sum;
}

template <class Format>
float add_outliers(const UniformRow<Format>& row, size_t cols, size_t group, const Q8Row& input, float sum) {
  using Block = UniformBlock<Format>;
  for (size_t span = 0; span < outlier_spans(cols); ++span) {
    for (size_t i = 0; i < input.outlier_counts[span]; ++i) {
      const Outlier& outlier = input.outliers[span * most_outliers(group) + i];
      const size_t col = span * kOutlierSpan + outlier.col, sub = col / Block::kSub;
      const float scale = row.scales[sub], code = float(row.codes[col]);
      const float weight = Block::kHasMin ? std::fma(scale, code, -row.mins[sub]) : scale * code;
      sum = std::fma(weight, outlier.value, sum);
    }
  }
  return sum;
}

template <class Format>
float dot_row(const UniformRow<Format>& row, size_t cols, size_t group, const Q8Row& input) {
  using Block = UniformBlock<Format>;
  constexpr size_t kSub = Block::kSub;
  float sum = 0.0f, min_sum = 0.0f;
  for (size_t begin = 0; begin < cols; begin += group) {
    const size_t end = std::min(begin + group, cols);
    int32_t prefix = kMagicBits;
    float scaled = -kMagic * row.scales[begin / kSub];
    for (size_t i = begin; i < end; i += kSub) {
      prefix += dot_codes<kSub>(row.codes.data() + i, input.values + i);
      const float next = i + kSub < end ? row.scales[i / kSub + 1] : 0.0f;
      scaled = std::fma(std::bit_cast<float>(prefix), row.scales[i / kSub] - next, scaled);
    }
    sum = std::fma(scaled, input.scales[begin / group], sum);
  }
  if constexpr (Block::kHasMin) {
    const float* sums = kSub == 32 ? input.sums32 : input.sums16;
    for (size_t j = 0; j < cols / kSub; ++j) min_sum = std::fma(row.mins[j], sums[j], min_sum);
    sum -= min_sum;
  }
  return add_outliers(row, cols, group, input, sum);
}

}  // namespace

template <class Format, ActivationForm kForm>
void matmul_q8(const MatmulArgs& args) {
  thread_local UniformRow<Format> row;
  const size_t cols = args.weight.cols, group = group_values(kForm);
  for (size_t begin = 0; begin < args.tokens; begin += kChunkTokens) {
    const size_t end = std::min(begin + kChunkTokens, args.tokens);
    for (size_t r = args.row_begin; r < args.row_end; ++r) {
      row.unpack(reinterpret_cast<const uint8_t*>(args.weight.row(r)), cols);
      for (size_t t = begin; t < end; ++t) {
        const Q8Row input(args.input + t * args.input_stride_bytes, cols, group);
        args.out[t * args.out_stride + r] = dot_row(row, cols, group, input);
      }
    }
  }
}

#define QUIRE_FORMAT(name, Format, form) \
  template void matmul_q8<format::Format, ActivationForm::form>(const MatmulArgs&);
#include "backend/cpu/quantized_formats.inc"
#undef QUIRE_FORMAT

}  // namespace quire::scalar
