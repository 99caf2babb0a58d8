// The driver of tile products on a machine in plain code: what AMX is given to do, and what is made of its results, is
// the same. AMX itself is compared with the scalar twin wherever it is present, like every kernel set.
#include <bit>
#include <cmath>
#include <cstring>

#include <gtest/gtest.h>

#include "backend/cpu/amx/tile_kernels.h"
#include "backend/cpu/matmul/matmul_case.h"
#include "base/check.h"

namespace quire {
namespace {

// A float per row of a panel, as PanelScales wants it.
struct PlainRows {
  float v[kPanelRows];

  static PlainRows load_f16(const uint8_t* bytes) {
    PlainRows rows;
    for (size_t r = 0; r < kPanelRows; ++r) rows.v[r] = format::load_f16(bytes + 2 * r);
    return rows;
  }
  static PlainRows load_i8(const uint8_t* bytes) {
    PlainRows rows;
    for (size_t r = 0; r < kPanelRows; ++r) rows.v[r] = float(int8_t(bytes[r]));
    return rows;
  }
  static PlainRows load_i8_of_pairs(const uint8_t* bytes, size_t which) {
    PlainRows rows;
    for (size_t r = 0; r < kPanelRows; ++r) rows.v[r] = float(int8_t(bytes[2 * r + which]));
    return rows;
  }
  static PlainRows load_exponents(const uint8_t* bytes) {
    PlainRows rows;
    for (size_t r = 0; r < kPanelRows; ++r) rows.v[r] = format::Mxfp4::half_power(bytes[r]);
    return rows;
  }
  void store(float* out) const { std::memcpy(out, v, sizeof(v)); }
};

// The code of a row and column of a packed step of 32.
template <class Format>
int8_t code_at(const uint8_t* step, size_t row, size_t column) {
  const size_t g = column / 4, place = row * 4 + column % 4;
  if constexpr (kCoding<Format> == Coding::byte) return int8_t(step[64 * g + place]);
  const uint8_t both = step[64 * (g % 4) + place];
  const int low = g < 4 ? both & 15 : both >> 4;
  if constexpr (kCoding<Format> == Coding::widened) return int8_t(low << 4);
  if constexpr (kCoding<Format> == Coding::table) return CodeTable<Format>::code(size_t(low));
  if constexpr (kCoding<Format> == Coding::four) return int8_t(low);
  const int high = kCoding<Format> == Coding::five ? step[256 + place] >> g & 1
                                                   : step[256 + 64 * (g / 4) + place] >> 2 * (g % 4) & 3;
  return int8_t(low + 16 * high + kLowest<Format>);
}

struct PlainTile {
  TileShape shape;
  int8_t bytes[16][64];
};

// Eight tiles that hold what AMX would, and refuse what it would refuse.
struct PlainTiles {
  static inline thread_local PlainTile tiles[8];
  static inline thread_local bool is_configured = false;

  static void configure(size_t tokens) {
    CHECK(!is_configured);
    is_configured = true;
    for (size_t i = 0; i < std::size(tiles); ++i) {
      tiles[i] = {tile_shape(i, tokens), {}};
      CHECK(tiles[i].shape.rows >= 1 && tiles[i].shape.rows <= 16);
      CHECK(tiles[i].shape.row_bytes % 4 == 0 && tiles[i].shape.row_bytes <= 64);
    }
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
    CHECK(is_configured);
    PlainTile& tile = tiles[kTile];
    std::memset(tile.bytes, 0, sizeof(tile.bytes));
    for (size_t r = 0; r < tile.shape.rows; ++r) {
      std::memcpy(tile.bytes[r], static_cast<const int8_t*>(rows) + r * stride_bytes, tile.shape.row_bytes);
    }
  }
  template <size_t kTile>
  static void store(void* rows, size_t stride_bytes) {
    CHECK(is_configured);
    const PlainTile& tile = tiles[kTile];
    for (size_t r = 0; r < tile.shape.rows; ++r) {
      std::memcpy(static_cast<int8_t*>(rows) + r * stride_bytes, tile.bytes[r], tile.shape.row_bytes);
    }
  }
  template <size_t kSums, size_t kInputs, size_t kCodes>
  static void multiply() {
    CHECK(is_configured);
    PlainTile& sums = tiles[kSums];
    const PlainTile &inputs = tiles[kInputs], &codes = tiles[kCodes];
    CHECK(sums.shape.rows == inputs.shape.rows && sums.shape.row_bytes == codes.shape.row_bytes);
    CHECK(inputs.shape.row_bytes == 4 * codes.shape.rows);
    for (size_t m = 0; m < sums.shape.rows; ++m) {
      for (size_t n = 0; n < sums.shape.row_bytes / 4; ++n) {
        int32_t sum;
        std::memcpy(&sum, sums.bytes[m] + 4 * n, sizeof(sum));
        for (size_t k = 0; k < inputs.shape.row_bytes; ++k) {
          sum += int32_t(inputs.bytes[m][k]) * int32_t(codes.bytes[k / 4][4 * n + k % 4]);
        }
        std::memcpy(sums.bytes[m] + 4 * n, &sum, sizeof(sum));
      }
    }
  }

  struct Lanes {
    float v[kPanelRows];

    static Lanes load(const float* values) {
      Lanes lanes;
      std::memcpy(lanes.v, values, sizeof(lanes.v));
      return lanes;
    }
    static Lanes broadcast(const float* value) {
      Lanes lanes;
      std::fill(std::begin(lanes.v), std::end(lanes.v), *value);
      return lanes;
    }
    void store(float* out) const { std::memcpy(out, v, sizeof(v)); }
  };
  static Lanes multiply_add(const Lanes& a, const Lanes& b, const Lanes& c) {
    Lanes result;
    for (size_t i = 0; i < kPanelRows; ++i) result.v[i] = std::fma(a.v[i], b.v[i], c.v[i]);
    return result;
  }

  struct Pairs {
    int16_t v[kPanelRows][2];

    static Pairs load(const int16_t* values) {
      Pairs pairs;
      std::memcpy(pairs.v, values, sizeof(pairs.v));
      return pairs;
    }
  };
  struct Ints {
    int32_t v[kPanelRows];

    static Ints zero() { return {}; }
  };
  static Ints add_products(Ints sum, const Pairs& pairs, const int16_t* two) {
    for (size_t i = 0; i < kPanelRows; ++i) sum.v[i] += pairs.v[i][0] * two[0] + pairs.v[i][1] * two[1];
    return sum;
  }
  static Lanes to_floats(const Ints& sums) {
    Lanes lanes;
    for (size_t i = 0; i < kPanelRows; ++i) lanes.v[i] = float(sums.v[i]);
    return lanes;
  }
  static Lanes to_floats(const int32_t* low, const int32_t* high) {
    Lanes lanes;
    for (size_t i = 0; i < kPanelRows; ++i) lanes.v[i] = float(low[i] + high[i] * (1 << kFoldBits));
    return lanes;
  }
  static Lanes multiply(const Lanes& a, const Lanes& b) {
    Lanes result;
    for (size_t i = 0; i < kPanelRows; ++i) result.v[i] = a.v[i] * b.v[i];
    return result;
  }
  static Lanes multiply_subtract(const Lanes& a, const Lanes& b, const Lanes& c) {
    Lanes result;
    for (size_t i = 0; i < kPanelRows; ++i) result.v[i] = std::fma(-a.v[i], b.v[i], c.v[i]);
    return result;
  }

  template <class Format>
  static void open(const uint8_t* panel, size_t cols, const OpenPanel& out) {
    using Packed = PackedBlock<Format>;
    for (size_t c = 0; c < cols; ++c) {
      const uint8_t* block = panel + c / Packed::kValues * Packed::kBytes;
      const uint8_t* step = block + Packed::kStart + c % Packed::kValues / 32 * Packed::kStepBytes;
      for (size_t r = 0; r < kPanelRows; ++r) {
        const size_t place = c / 4 * 64 + 4 * r + c % 4;
        const int code = code_at<Format>(step, r, c % 32);
        const size_t sub = c % Packed::kValues / Packed::kSub;
        const int product = code * int8_t(block[Packed::kSubScales + kPanelRows * sub + r]);
        out.codes[place] = uint8_t(product & 127);
        out.codes[kPanelRows * cols + place] = uint8_t(product >> kFoldBits);
      }
    }
    PanelScales<Format, PlainRows>::open_blocks(panel, cols, out);
  }

  template <class Format>
  static void read_columns(const uint8_t* panel, size_t first, const uint32_t* cols, size_t count,
                           float* weights) {
    using Packed = PackedBlock<Format>;
    using Scales = PanelScales<Format, PlainRows>;
    for (size_t k = 0; k < count; ++k) {
      const size_t column = first + cols[k], begin = column / Packed::kSub * Packed::kSub;
      const uint8_t* step = panel + column / Packed::kValues * Packed::kBytes + Packed::kStart +
                            column % Packed::kValues / 32 * Packed::kStepBytes;
      const PlainRows scale = Scales::scales(panel, begin);
      PlainRows min = {};
      if constexpr (Packed::Uniform::kHasMin) min = Scales::mins(panel, begin);
      for (size_t r = 0; r < kPanelRows; ++r)
        weights[kPanelRows * cols[k] + r] =
            std::fma(scale.v[r], float(code_at<Format>(step, r, column % 32)), -min.v[r]);
    }
  }
  static void add_columns(const OutlierUse* uses, size_t count, const float* weights,
                          float (*products)[kPanelRows]) {
    for (size_t u = 0; u < count; ++u) {
      float* product = products[uses[u].token];
      for (size_t r = 0; r < kPanelRows; ++r)
        product[r] = std::fma(weights[kPanelRows * uses[u].col + r], uses[u].value, product[r]);
    }
  }
  template <class Format>
  static constexpr OutlierKernels kOutliers = {read_columns<Format>, add_columns};
};

template <class Format>
void matmul(const MatmulArgs& args) {
  static constexpr TileKernels kKernels = tile_kernels<PlainTiles, Format>();
  multiply_tiles(args, kKernels);
}

// Only for weights of kTypes, and kLeastTileTokens tokens or more.
constexpr DType kTypes[] = {DType::q2_k, DType::q3_k, DType::q4_k, DType::q5_k, DType::q6_k, DType::iq4_xs};

template <class Format>
void use_plain_tiles(CpuKernels& kernels, DType dtype) {
  kernels.matmul[size_t(dtype)] = matmul<Format>;
  kernels.panels[size_t(dtype)] = panel_format<Format>();
}

CpuKernels plain_tile_kernels() {
  CpuKernels kernels = scalar_kernels();
  kernels.name = "plain tiles";
  use_plain_tiles<format::Q2_K>(kernels, DType::q2_k);
  use_plain_tiles<format::Q3_K>(kernels, DType::q3_k);
  use_plain_tiles<format::Q4_K>(kernels, DType::q4_k);
  use_plain_tiles<format::Q5_K>(kernels, DType::q5_k);
  use_plain_tiles<format::Q6_K>(kernels, DType::q6_k);
  use_plain_tiles<format::Iq4Xs>(kernels, DType::iq4_xs);
  return kernels;
}

void expect_the_scalar_product(const MatmulCase& test) {
  ASSERT_EQ(test.product(plain_tile_kernels()), test.product(scalar_kernels()))
      << traits(test.dtype).name << " " << test.rows << " x " << test.cols << ", " << test.tokens
      << " tokens";
}

TEST(TileMatmul, IsThatOfTheScalarTwinForAnyWidth) {
  for (DType dtype : kTypes) {
    for (size_t blocks : {1u, 2u, 3u, 4u, 5u, 11u}) {
      const size_t cols = blocks * traits(dtype).block_values;
      ASSERT_NO_FATAL_FAILURE(expect_the_scalar_product(MatmulCase(dtype, 21, cols, 21)));
    }
  }
}

TEST(TileMatmul, IsThatOfTheScalarTwinForAnyNumberOfTokens) {
  for (DType dtype : kTypes) {
    for (size_t tokens = kLeastTileTokens; tokens <= 50; ++tokens) {
      ASSERT_NO_FATAL_FAILURE(expect_the_scalar_product(MatmulCase(dtype, 33, 256, tokens)));
    }
  }
}

TEST(TileMatmul, IsThatOfTheScalarTwinWhenTokensDoNotShareAnOpening) {
  ASSERT_NO_FATAL_FAILURE(expect_the_scalar_product(MatmulCase(DType::q2_k, 17, 512, 257)));
  ASSERT_NO_FATAL_FAILURE(expect_the_scalar_product(MatmulCase(DType::q3_k, 5, 8192 * 2, 100)));
}

TEST(TileMatmul, WithOutliersIsThatOfTheScalarTwin) {
  for (DType dtype : kTypes) {
    ASSERT_NO_FATAL_FAILURE(
        expect_the_scalar_product(MatmulCase(dtype, 37, 5 * traits(dtype).block_values, 19).add_outliers()));
  }
  // The tokens of an opening are 32 here, so that one remains, and its tile begins among those of the opening before.
  ASSERT_NO_FATAL_FAILURE(expect_the_scalar_product(MatmulCase(DType::q2_k, 5, 8192 * 4, 65).add_outliers()));
}

TEST(TileMatmul, TakesAnyCodesAndTheLargestActivations) {
  std::mt19937 random(9);
  for (DType dtype : kTypes) {
    MatmulCase test(dtype, 37, 5 * traits(dtype).block_values, 19);
    for (std::byte& byte : test.weight) byte = std::byte(random());
    // 127 or -127 each; the first token's are all of one sign.
    for (size_t i = 0; i < test.input.size(); ++i) {
      test.input[i] = i < test.cols || random() % 2 == 0 ? 1.0f : -1.0f;
    }
    const std::vector<float> expected = test.product(scalar_kernels()),
                             out = test.product(plain_tile_kernels());
    for (size_t i = 0; i < out.size(); ++i) {
      if (std::isnan(expected[i]) && std::isnan(out[i])) continue;  // random scales may be NaN
      ASSERT_EQ(std::bit_cast<uint32_t>(out[i]), std::bit_cast<uint32_t>(expected[i]))
          << traits(dtype).name << " " << i;
    }
  }
}

TEST(TileMatmul, IsTheSameForAnySplitOfRows) {
  for (DType dtype : kTypes) {
    const MatmulCase test(dtype, 75, 512, 40);
    const std::vector<float> whole = test.product(scalar_kernels());
    for (size_t call_rows : {1u, 5u, 16u, 32u, 48u}) {
      ASSERT_EQ(test.product(plain_tile_kernels(), 40, call_rows), whole) << call_rows;
    }
  }
}

TEST(TileMatmul, GivesTheTilesBack) {
  MatmulCase(DType::q2_k, 16, 256, 16).product(plain_tile_kernels());
  EXPECT_FALSE(PlainTiles::is_configured);
}

}  // namespace
}  // namespace quire
