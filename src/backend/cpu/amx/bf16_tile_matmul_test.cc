// The driver of bf16 tile products on a machine in plain code, which does what `tdpbf16ps` is said to do. AMX itself is
// compared with it wherever it is present.
#include <cmath>
#include <cstring>

#include <gtest/gtest.h>

#include "backend/cpu/amx/bf16_tile_product.h"
#include "backend/cpu/amx/tile_permission.h"
#include "backend/cpu/kernel_choice.h"
#include "backend/cpu/matmul/matmul_case.h"
#include "base/check.h"
#include "tensor/float16.h"

namespace quire {
namespace {

struct PlainTile {
  size_t rows;
  uint8_t bytes[16][64];

  float bf16(size_t row, size_t i) const {
    uint16_t bits;
    std::memcpy(&bits, bytes[row] + 2 * i, sizeof(bits));
    return bf16_to_f32(bits);
  }
};

// Eight tiles that hold what AMX would, and refuse what it would refuse.
struct PlainTiles {
  static inline thread_local PlainTile tiles[8];
  static inline thread_local bool is_configured = false;

  static void configure(size_t tokens) {
    CHECK(!is_configured && tokens >= 1 && tokens <= 16);
    is_configured = true;
    for (size_t i = 0; i < std::size(tiles); ++i) tiles[i] = {bf16_tile_rows(i, tokens), {}};
  }
  static void release() {
    CHECK(is_configured);
    is_configured = false;
  }

  template <size_t kTile>
  static void zero() {
    CHECK(is_configured);
    std::memset(tiles[kTile].bytes, 0, sizeof(tiles[kTile].bytes));
  }
  template <size_t kTile>
  static void load(const void* rows, size_t stride_bytes) {
    zero<kTile>();
    for (size_t r = 0; r < tiles[kTile].rows; ++r)
      std::memcpy(tiles[kTile].bytes[r], static_cast<const uint8_t*>(rows) + r * stride_bytes, 64);
  }
  template <size_t kTile>
  static void store(void* rows, size_t stride_bytes) {
    CHECK(is_configured);
    for (size_t r = 0; r < tiles[kTile].rows; ++r)
      std::memcpy(static_cast<uint8_t*>(rows) + r * stride_bytes, tiles[kTile].bytes[r], 64);
  }
  template <size_t kSums, size_t kInputs, size_t kWeights>
  static void multiply() {
    CHECK(is_configured);
    PlainTile& sums = tiles[kSums];
    const PlainTile &inputs = tiles[kInputs], &weights = tiles[kWeights];
    CHECK(sums.rows == inputs.rows && weights.rows == 16);
    for (size_t m = 0; m < sums.rows; ++m) {
      for (size_t n = 0; n < 16; ++n) {
        float even = 0, odd = 0, sum;
        for (size_t k = 0; k < 16; ++k) {
          even = std::fma(inputs.bf16(m, 2 * k), weights.bf16(k, 2 * n), even);
          odd = std::fma(inputs.bf16(m, 2 * k + 1), weights.bf16(k, 2 * n + 1), odd);
        }
        std::memcpy(&sum, sums.bytes[m] + 4 * n, sizeof(sum));
        sum += even + odd;
        std::memcpy(sums.bytes[m] + 4 * n, &sum, sizeof(sum));
      }
    }
  }
};

void matmul(const MatmulArgs& args) {
  static constexpr Bf16TileKernels kKernels = bf16_tile_kernels<PlainTiles>();
  multiply_bf16_tiles(args, kKernels);
}

// Only for bf16 weights.
CpuKernels plain_tile_kernels() {
  CpuKernels kernels = scalar_kernels();
  kernels.name = "plain tiles";
  kernels.matmul[size_t(DType::bf16)] = matmul;
  kernels.panels[size_t(DType::bf16)] = bf16_panel_format<2>();
  return kernels;
}

// What the tiles are to compute, element by element.
std::vector<float> expected_product(const MatmulCase& test) {
  std::vector<float> out, row(test.cols);
  for (size_t t = 0; t < test.tokens; ++t) {
    for (size_t r = 0; r < test.rows; ++r) {
      dequantize_row(DType::bf16, test.matrix().row(r), row);
      float sum = 0;
      for (size_t begin = 0; begin < test.cols; begin += kBf16Cols) {
        float parts[2] = {};
        for (size_t c = begin; c < std::min(begin + kBf16Cols, test.cols); ++c) {
          const float value = bf16_to_f32(f32_to_bf16(test.input[t * test.cols + c]));
          parts[c % 2] = std::fma(value, row[c], parts[c % 2]);
        }
        sum += parts[0] + parts[1];
      }
      out.push_back(sum);
    }
  }
  return out;
}

TEST(Bf16TileMatmul, AddsTilesInTheOrderOfColumnsForAnyWidth) {
  for (size_t cols : {1u, 2u, 31u, 32u, 33u, 64u, 95u, 300u, 2048u + 65u}) {
    for (size_t tokens : {1u, 21u}) {
      const MatmulCase test(DType::bf16, 21, cols, tokens);
      ASSERT_EQ(test.product(plain_tile_kernels()), expected_product(test)) << cols << ", " << tokens;
    }
  }
}

TEST(Bf16TileMatmul, IsTheSameForAnyNumberOfTokens) {
  for (size_t tokens = 1; tokens <= 70; ++tokens) {
    const MatmulCase test(DType::bf16, 33, 45, tokens);
    ASSERT_EQ(test.product(plain_tile_kernels()), expected_product(test)) << tokens;
  }
  const MatmulCase test(DType::bf16, 70, 45, 531);  // several shares, and a group of panels and more
  ASSERT_EQ(test.product(plain_tile_kernels()), expected_product(test));
}

TEST(Bf16TileMatmul, IsTheSameForAnySplitOfRowsAndTokens) {
  const MatmulCase test(DType::bf16, 75, 200, 40);
  const std::vector<float> whole = expected_product(test);
  for (size_t call_tokens : {1u, 7u, 40u}) {
    for (size_t call_rows : {1u, 5u, 16u, 32u, 48u}) {
      ASSERT_EQ(test.product(plain_tile_kernels(), call_tokens, call_rows), whole) << call_rows;
    }
  }
}

TEST(Bf16TileMatmul, GivesTheTilesBack) {
  MatmulCase(DType::bf16, 16, 64, 16).product(plain_tile_kernels());
  EXPECT_FALSE(PlainTiles::is_configured);
}

TEST(Bf16TileMatmul, OfTheCpuIsThatOfPlainCode) {
  if (!may_use_bf16_tiles()) GTEST_SKIP() << "this CPU has no tiles of bf16";
  for (size_t tokens : {1u, 5u, 16u, 40u, 300u}) {
    const MatmulCase test(DType::bf16, 37, 2048 + 71, tokens);
    ASSERT_EQ(test.product(present_kernels().back()), expected_product(test)) << tokens;
  }
}

}  // namespace
}  // namespace quire
