// Products with bf16 weights by `bfmmla`, which multiplies two rows by two tokens over four columns. Its result is a
// vector {row 0 token 0, row 0 token 1, row 1 token 0, row 1 token 1}. How it rounds is the CPU's affair, but the same for
// each of the four, so an element does not depend on what stands beside it.
//
// Compiled for ARMv8.2 with bf16, so nothing here may be inlined elsewhere.
#if defined(__aarch64__)

#include <cstring>

#include <arm_neon.h>

#include "backend/cpu/bfmmla/bfmmla_kernels.h"
#include "backend/cpu/matmul/bf16_panels.h"
#include "backend/cpu/matmul/panel_scratch.h"
#include "backend/cpu/matmul/stream_fetch.h"

#define ALWAYS_INLINE inline __attribute__((always_inline))

namespace quire {
namespace {

constexpr size_t kRowPairs = kPanelRows / 2;
constexpr size_t kTilePairs = 2;  // of tokens: 16 sums, 4 inputs, and weights that are loaded ahead
constexpr size_t kTileTokens = 2 * kTilePairs;
constexpr size_t kVectorBytes = 16;
constexpr size_t kStepBytes = kRowPairs * kVectorBytes;  // of four columns of a panel

// A chunk of a panel stays in the first-level cache for the tokens of a share, whose sums wait in memory meanwhile.
constexpr size_t kChunkCols = 1024;
constexpr size_t kShareTokens = 128;
static_assert(kShareTokens % kTileTokens == 0 && kChunkCols % kBf16Cols == 0);

constexpr size_t smaller(size_t a, size_t b) {
  return a < b ? a : b;
}

template <size_t kPairs>
struct Sums {
  float32x4_t v[kPairs][kRowPairs];
};
using SumMemory = float[kTilePairs][kRowPairs][4];

ALWAYS_INLINE uint64x2_t load_bits(const std::byte* bytes) {
  return vreinterpretq_u64_u8(vld1q_u8(reinterpret_cast<const uint8_t*>(bytes)));
}

// Four columns of all rows with two tokens each of `inputs`.
template <size_t kPairs>
ALWAYS_INLINE void add_columns(const std::byte* weights, const uint64x2_t* inputs, Sums<kPairs>& sums) {
#pragma GCC unroll 8
  for (size_t r = 0; r < kRowPairs; ++r) {
    const bfloat16x8_t rows = vreinterpretq_bf16_u64(load_bits(weights + r * kVectorBytes));
#pragma GCC unroll 8
    for (size_t p = 0; p < kPairs; ++p)
      sums.v[p][r] = vbfmmlaq_f32(sums.v[p][r], rows, vreinterpretq_bf16_u64(inputs[p]));
  }
}

// Adds the products of `cols` columns, a multiple of eight.
template <size_t kPairs, bool kFetch>
void multiply(const std::byte* weights, size_t cols, const std::byte* const* inputs, bool is_first,
              SumMemory& memory) {
  Sums<kPairs> sums = {};
  if (!is_first) std::memcpy(&sums, memory, sizeof(sums));
  for (size_t c = 0; c < cols; c += 8, weights += 2 * kStepBytes) {
    if constexpr (kFetch) fetch_ahead<FarFetch, 2 * kStepBytes>(weights);
    uint64x2_t low[kPairs], high[kPairs];
#pragma GCC unroll 8
    for (size_t p = 0; p < kPairs; ++p) {
      const uint64x2_t first = load_bits(inputs[2 * p] + c * sizeof(uint16_t));
      const uint64x2_t second = load_bits(inputs[2 * p + 1] + c * sizeof(uint16_t));
      low[p] = vzip1q_u64(first, second);
      high[p] = vzip2q_u64(first, second);
    }
    add_columns(weights, low, sums);
    add_columns(weights + kStepBytes, high, sums);
  }
  std::memcpy(memory, &sums, sizeof(sums));
}

class Bf16Matmul {
 public:
  explicit Bf16Matmul(const MatmulArgs& args)
      : args_(args),
        cols_(bf16_panel_cols(args.weight.cols)),
        sums_(reinterpret_cast<SumMemory*>(panel_scratch(kShareTokens / kTileTokens * sizeof(SumMemory)))) {}

  void run() const {
    const size_t first = args_.row_begin / kPanelRows;
    const size_t last = (args_.row_end + kPanelRows - 1) / kPanelRows;
    for (size_t token = 0; token < args_.tokens; token += kShareTokens) {
      const size_t end = smaller(token + kShareTokens, args_.tokens);
      for (size_t panel = first; panel < last; ++panel) {
        for (size_t col = 0; col < cols_; col += kChunkCols) multiply_share(panel, col, token, end);
        for (size_t t = token; t < end; ++t) store(panel, t, (t - token) / kTileTokens);
      }
    }
  }

 private:
  void multiply_share(size_t panel, size_t col, size_t begin, size_t end) const {
    const std::byte* weights = args_.panels + (panel * cols_ + col) * kPanelRows * sizeof(uint16_t);
    const size_t cols = smaller(kChunkCols, cols_ - col);
    for (size_t token = begin; token < end; token += kTileTokens) {
      const size_t count = smaller(kTileTokens, end - token);
      const std::byte* inputs[kTileTokens];
      for (size_t i = 0; i < kTileTokens; ++i)  // where there is no second token of a pair, its first again
        inputs[i] =
            args_.input + (token + (i < count ? i : 0)) * args_.input_stride_bytes + col * sizeof(uint16_t);
      SumMemory& sums = sums_[(token - begin) / kTileTokens];
      const auto of_shape = token == begin ? (count <= 2 ? multiply<1, true> : multiply<2, true>)
                                           : (count <= 2 ? multiply<1, false> : multiply<2, false>);
      of_shape(weights, cols, inputs, col == 0, sums);
    }
  }

  void store(size_t panel, size_t token, size_t tile) const {
    const size_t first = panel * kPanelRows;
    const size_t from = first < args_.row_begin ? args_.row_begin : first;
    const size_t to = smaller(first + kPanelRows, args_.row_end);
    const size_t in_tile = token % kTileTokens;  // shares begin with tiles
    const float(&sums)[kRowPairs][4] = sums_[tile][in_tile / 2];
    float* out = args_.out + token * args_.out_stride;
    for (size_t r = from; r < to; ++r) out[r] = sums[(r - first) / 2][2 * ((r - first) % 2) + in_tile % 2];
  }

  const MatmulArgs& args_;
  size_t cols_;      // of the panels
  SumMemory* sums_;  // of a share's tiles and one panel
};

void matmul(const MatmulArgs& args) {
  Bf16Matmul(args).run();
}

}  // namespace

void use_bfmmla(CpuKernels& kernels) {
  kernels.matmul[size_t(DType::bf16)] = matmul;
  kernels.panels[size_t(DType::bf16)] = bf16_panel_format<4>();
  kernels.attend = attend_bfmmla;
}

}  // namespace quire

#endif
