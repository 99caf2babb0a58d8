#include "backend/cuda/matmul/weight_packing.h"

#include <algorithm>
#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "backend/cuda/matmul/activation_layout.h"
#include "backend/cuda/matmul/random_weight.h"
#include "tensor/float16.h"
#include "tensor/quantize.h"

namespace quire::cuda {
namespace {

TEST(WeightPacking, HoldsWhatTheFileSaysWithinTheRoundingOfItsScales) {
  for (const DType dtype :
       {DType::bf16, DType::q8_0, DType::q4_0, DType::q4_k, DType::q6_k, DType::mxfp4, DType::f16}) {
    const RandomWeight weight(dtype, 40, 512, 3);
    const std::vector<std::byte> packed = pack_on_host(weight.view(), {});
    const WeightShape shape = packed_shape(weight.view(), {});
    std::vector<float> row(512);
    for (uint32_t r = 0; r < 40; ++r) {
      dequantize_row(dtype, weight.view().row(r), row);
      for (uint32_t k = 0; k < 512; ++k) {
        // bf16 of the scale and of the product; a minimum may cancel most of it.
        const float bound = (std::abs(row[k]) + (dtype == DType::q4_k ? 0.3f : 0.0f)) * 0x1p-7f;
        ASSERT_NEAR(packed_value(shape, packed, r, k), row[k], bound)
            << name(shape.format) << " " << r << " " << k;
      }
    }
  }
}

TEST(WeightPacking, MxfpFourIsExact) {
  const RandomWeight weight(DType::mxfp4, 16, 256, 4);
  const std::vector<std::byte> packed = pack_on_host(weight.view(), {});
  std::vector<float> row(256);
  for (uint32_t r = 0; r < 16; ++r) {
    dequantize_row(DType::mxfp4, weight.view().row(r), row);
    for (uint32_t k = 0; k < 256; ++k) {
      ASSERT_EQ(packed_value(packed_shape(weight.view(), {}), packed, r, k), row[k]);
    }
  }
}

TEST(WeightPacking, EveryTypeOfAProductIsPackedAndOnlyThoseWithoutAFormAreBf16) {
  for (const DType dtype : kProductTypes) {
    const bool own = format_for(dtype) != WeightFormat::bf16;
    EXPECT_EQ(own, dtype == DType::q8_0 || dtype == DType::q4_0 || dtype == DType::q4_k ||
                       dtype == DType::q6_k || dtype == DType::mxfp4)
        << traits(dtype).name;
  }
}

TEST(WeightPacking, RoundsTypesWithoutAFormOfTheirOwnOnce) {
  for (const DType dtype : kProductTypes) {
    if (format_for(dtype) != WeightFormat::bf16) continue;
    const RandomWeight weight(dtype, 16, 256, 4);
    const std::vector<std::byte> packed = pack_on_host(weight.view(), {});
    std::vector<float> row(256);
    for (uint32_t r = 0; r < 16; ++r) {
      dequantize_row(dtype, weight.view().row(r), row);
      for (uint32_t k = 0; k < 256; ++k) {
        ASSERT_EQ(packed_value(packed_shape(weight.view(), {}), packed, r, k),
                  bf16_to_f32(f32_to_bf16(row[k])));
      }
    }
  }
}

TEST(WeightPacking, PadsRowsAndColumnsWithZeros) {
  for (const DType dtype : {DType::bf16, DType::q8_0, DType::q4_0, DType::mxfp4}) {
    const RandomWeight weight(dtype, 5, 160, 5);
    const WeightShape shape = packed_shape(weight.view(), {});
    const std::vector<std::byte> packed = pack_on_host(weight.view(), {});
    ASSERT_EQ(packed.size(), shape.bytes());
    for (uint32_t row = 0; row < shape.padded_rows(); ++row) {
      for (uint32_t k = 0; k < shape.blocks() * kBlockK; ++k) {
        if (row < 5 && k < 160) continue;
        ASSERT_EQ(packed_value(shape, packed, row, k), 0.0f);
      }
    }
  }
}

TEST(WeightPacking, TakesRowsInTheOrderItIsGiven) {
  const RandomWeight weight(DType::q8_0, 64, 128, 6);
  const RowOrder order = {63, 5, 5, 0, 17};
  const WeightShape shape = packed_shape(weight.view(), order);
  EXPECT_EQ(shape.rows, 5u);
  const std::vector<std::byte> packed = pack_on_host(weight.view(), order);
  const std::vector<std::byte> plain = pack_on_host(weight.view(), {});
  for (uint32_t row = 0; row < 5; ++row) {
    EXPECT_EQ(packed_value(shape, packed, row, 77), packed_value(shape, plain, order[row], 77));
  }
}

TEST(WeightPacking, PutsEightUpsBehindTheirEightGates) {
  for (const uint32_t width : {8u, 96u, 128u, 200u, 384u}) {
    const RowOrder order = gated_rows(width);
    ASSERT_EQ(order.size(), 2 * width);
    std::vector<bool> seen(2 * width);
    for (uint32_t row = 0; row < 2 * width; ++row) {
      if (row % 16 < 8) {
        EXPECT_LT(order[row], width) << row;
        EXPECT_EQ(order[row + 8], order[row] + width) << row;
      }
      seen[order[row]] = true;
    }
    EXPECT_TRUE(std::find(seen.begin(), seen.end(), false) == seen.end()) << width;
  }
}

TEST(WeightPacking, OrdersGatesSoThatEightOfThemAreSideBySideInTheNextActivations) {
  constexpr uint32_t kTokens = 11;
  for (const uint32_t width : {96u, 128u, 200u, 384u}) {
    for (uint32_t pair = 0; pair < width; ++pair) {
      for (const uint32_t token : {0u, 3u, 10u}) {
        const size_t place = gated_place(kTokens, token, pair, width);
        EXPECT_EQ(place, activation_place(kTokens, token, gated_column(pair, width)));
        if (in_whole_block(pair, width)) {
          EXPECT_EQ(place, gated_place(kTokens, token, pair / 8 * 8, width) + pair % 8 * 2);
        }
      }
    }
  }
}

}  // namespace
}  // namespace quire::cuda
