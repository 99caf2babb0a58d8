#include <bit>
#include <cmath>
#include <vector>

#include "backend/cpu/matmul/uniform_blocks.h"
#include "backend/cpu/scalar/matmul.h"

namespace quire::scalar {
namespace {

constexpr size_t kChunkTokens = 64;  // share a row's unpacking; their inputs stay in the second-level cache

// A row of weights with its scales as the kernels use them.
template <class Format>
struct UniformRow {
  using Block = UniformBlock<Format>;
  static constexpr size_t kSubs = Block::kValues / Block::kSub;
  std::vector<int8_t> codes;
  std::vector<float> scales;  // one more: 0
  std::vector<float> mins;

  void unpack(const uint8_t* bytes, size_t cols) {
    codes.resize(cols);
    scales.assign(cols / Block::kSub + 1, 0.0f);
    mins.resize(cols / Block::kSub);
    Block block;
    for (size_t b = 0; b < cols / Block::kValues; ++b) {
      block.unpack(bytes + b * Format::kBytes);
      std::memcpy(codes.data() + b * Block::kValues, block.codes, Block::kValues);
      std::copy(std::begin(block.scales), std::end(block.scales), scales.begin() + ptrdiff_t(b * kSubs));
      if constexpr (Block::kHasMin) mins[b] = block.mins[0];
    }
  }
  int8_t code(size_t col) const { return codes[col]; }
  float scale(size_t col) const { return scales[col / Block::kSub]; }
  float min(size_t col) const { return mins[col / Block::kSub]; }
};

template <In256 Format>
struct UniformRow<Format> {
  using Block = UniformBlock<Format>;
  std::vector<Block> blocks;

  void unpack(const uint8_t* bytes, size_t cols) {
    blocks.resize(cols / Block::kValues);
    for (size_t b = 0; b < blocks.size(); ++b) blocks[b].unpack(bytes + b * Format::kBytes);
  }
  const Block& block(size_t col) const { return blocks[col / Block::kValues]; }
  size_t sub(size_t col) const { return col % Block::kValues / Block::kSub; }
  int8_t code(size_t col) const { return block(col).codes[col % Block::kValues]; }
  float scale(size_t col) const { return block(col).scale * float(block(col).sub_scales[sub(col)]); }
  float min(size_t col) const { return block(col).min_scale * float(block(col).sub_mins[sub(col)]); }
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
      const size_t col = span * kOutlierSpan + outlier.col;
      const float scale = row.scale(col), code = float(row.code(col));
      const float weight = Block::kHasMin ? std::fma(scale, code, -row.min(col)) : scale * code;
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
    for (size_t j = 0; j < cols / kSub; ++j) min_sum = std::fma(row.mins[j], input.scaled_sums[j], min_sum);
    sum -= min_sum;
  }
  return add_outliers(row, cols, group, input, sum);
}

template <In256 Format>
float dot_row(const UniformRow<Format>& row, size_t cols, size_t group, const Q8Row& input) {
  using Block = UniformBlock<Format>;
  constexpr size_t kSub = Block::kSub, kValues = Block::kValues;
  const int16_t* sums = kSub == 32 ? input.sums32 : input.sums16;
  float sum = 0.0f;
  for (size_t b = 0; b < cols / kValues; ++b) {
    const Block& block = row.blocks[b];
    int32_t total = 0, min_total = 0;
    for (size_t j = 0; j < Block::kSubs; ++j) {
      const int32_t dot = dot_codes<kSub>(block.codes + kSub * j, input.values + kValues * b + kSub * j);
      total += block.sub_scales[j] * dot;
      if constexpr (Block::kHasMin) min_total += block.sub_mins[j] * sums[Block::kSubs * b + j];
    }
    float scaled = float(total) * block.scale;
    if constexpr (Block::kHasMin) scaled = std::fma(-float(min_total), block.min_scale, scaled);
    sum = std::fma(scaled, input.scales[b], sum);
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
#include "backend/cpu/matmul/book_formats.inc"
#include "backend/cpu/matmul/quantized_formats.inc"
#undef QUIRE_FORMAT

}  // namespace quire::scalar
