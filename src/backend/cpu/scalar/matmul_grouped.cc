#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "backend/cpu/matmul/grouped_weights.h"
#include "backend/cpu/scalar/matmul.h"
#include "tensor/float16.h"

namespace quire::scalar {
namespace {

constexpr size_t kChunkTokens = 512;  // share a row's unpacking

template <class Format, size_t kGroup>
struct GroupedRow {
  std::vector<int8_t> codes;
  std::vector<float> scales;

  void read(const uint8_t* row, size_t cols) {
    const size_t blocks = (cols + kGroupedBlockCols - 1) / kGroupedBlockCols;
    codes.resize(blocks * kGroupedBlockCols);
    scales.resize(blocks * kGroupedBlockCols / kGroup);
    GroupedRowBlock<Format, kGroup> block;
    for (size_t b = 0; b < blocks; ++b) {
      block.read(row, b * kGroupedBlockCols, cols);
      std::memcpy(codes.data() + b * kGroupedBlockCols, block.codes, kGroupedBlockCols);
      for (size_t g = 0; g < std::size(block.scales); ++g)
        scales[b * std::size(block.scales) + g] = bf16_to_f32(block.scales[g]);
    }
  }
};

int32_t dot(const int8_t* codes, const int8_t* values, size_t count) {
  int32_t sum = 0;
#if defined(__clang__)  // would unroll the loop and then not find the vectors in it
#pragma clang loop unroll(disable) vectorize(enable)
#endif
  for (size_t i = 0; i < count; ++i) sum += int32_t(codes[i]) * int32_t(values[i]);
  return sum;
}

template <class Format, size_t kGroup>
float dot_row(const GroupedRow<Format, kGroup>& row, size_t cols, const Q8Row& input) {
  float sum = 0;
  for (size_t begin = 0; begin < cols; begin += kGroup) {
    const size_t g = begin / kGroup, count = std::min(kGroup, cols - begin);
    const int32_t whole = count == kGroup ? dot(row.codes.data() + begin, input.values + begin, kGroup)
                                          : dot(row.codes.data() + begin, input.values + begin, count);
    sum = std::fma(float(whole), input.scales[g] * row.scales[g], sum);
  }
  for (size_t span = 0; span < outlier_spans(cols); ++span) {
    for (size_t i = 0; i < input.outlier_counts[span]; ++i) {
      const Outlier& outlier = input.outliers[span * most_outliers(kGroup) + i];
      const size_t col = span * kOutlierSpan + outlier.col;
      sum = std::fma(row.scales[col / kGroup] * float(row.codes[col]), outlier.value, sum);
    }
  }
  return sum;
}

}  // namespace

template <class Format, ActivationForm kForm>
void matmul_grouped(const MatmulArgs& args) {
  constexpr size_t kGroup = group_values(kForm);
  thread_local GroupedRow<Format, kGroup> row;
  const size_t cols = args.weight.cols;
  for (size_t begin = 0; begin < args.tokens; begin += kChunkTokens) {
    const size_t end = std::min(begin + kChunkTokens, args.tokens);
    for (size_t r = args.row_begin; r < args.row_end; ++r) {
      row.read(reinterpret_cast<const uint8_t*>(args.weight.row(r)), cols);
      for (size_t t = begin; t < end; ++t) {
        const Q8Row input(args.input + t * args.input_stride_bytes, cols, kGroup);
        args.out[t * args.out_stride + r] = dot_row(row, cols, input);
      }
    }
  }
}

#define QUIRE_FORMAT(name, Format, form) \
  template void matmul_grouped<format::Format, ActivationForm::form>(const MatmulArgs&);
#include "backend/cpu/matmul/grouped_formats.inc"
#undef QUIRE_FORMAT

}  // namespace quire::scalar
