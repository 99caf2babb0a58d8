#include "backend/cuda/matmul/weight_layout.h"

#include <bit>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "backend/cuda/matmul/activation_layout.h"
#include "tensor/float16.h"

namespace quire::cuda {
namespace {

TEST(WeightLayout, EveryBitOfABlocksCodesHasAPlaceOfItsOwnBelowTheScales) {
  for (const WeightFormat format : kWeightFormats) {
    std::set<uint32_t> places;
    for (uint32_t row = 0; row < kTileRows; ++row) {
      for (uint32_t k = 0; k < kBlockK; ++k) {
        for (uint32_t bit = 0; bit < code_bits(format); ++bit) places.insert(code_bit(format, row, k, bit));
      }
    }
    EXPECT_EQ(places.size(), kTileRows * kBlockK * code_bits(format)) << name(format);
    EXPECT_EQ(*places.rbegin() + 1, kTileRows * kBlockK * code_bits(format)) << name(format);
  }
}

TEST(WeightLayout, ScalesFollowTheCodesAndFillTheBlock) {
  for (const WeightFormat format : kWeightFormats) {
    if (format == WeightFormat::bf16) continue;
    std::set<uint32_t> places;
    for (uint32_t row = 0; row < kTileRows; ++row) {
      for (uint32_t k = 0; k < kBlockK; ++k) {
        const uint32_t place = scale_place(format, row, k);
        places.insert(place);
        if (format == WeightFormat::q4_k) places.insert(place + 4);
        EXPECT_EQ(place, scale_place(format, row, k / scale_k(format) * scale_k(format)));
      }
    }
    EXPECT_EQ(*places.begin(), kTileRows * kBlockK * code_bits(format) / 8) << name(format);
    EXPECT_EQ(*places.rbegin() + 2, block_bytes(format)) << name(format);
    EXPECT_EQ(places.size(), (block_bytes(format) - *places.begin()) / 2) << name(format);
  }
}

// Masked, shifted and rotated words, as the kernels take them apart, against the places of the layout.
TEST(WeightLayout, WordsOfMxfp4BecomePairsOfBf16ByShiftsAndMasks) {
  const auto pair = [](uint32_t word, uint32_t which) {
    constexpr uint32_t kCode = 0x81c081c0u;
    switch (which) {
      case 0:
        return word & kCode;
      case 1:
        return std::rotr(word, 4) & kCode;
      case 2:
        return word << 6 & kCode;
      default:
        return (word << 2 & 0x80c080c0u) | (word >> 6 & 0x01000100u);
    }
  };
  for (uint32_t which = 0; which < 4; ++which) {
    for (uint32_t code = 0; code < 16; ++code) {
      for (uint32_t beside = 0; beside < 2; ++beside) {
        uint32_t word = 0;
        for (uint32_t bit = 0; bit < 4; ++bit) {
          word |= (code >> bit & 1) << mxfp4_bit(which / 2, which % 2 * 2 + beside, bit);
        }
        const float value = bf16_to_f32(uint16_t(pair(word, which) >> (16 * beside)));
        EXPECT_EQ(value * 0x1p126f, code_value(WeightFormat::mxfp4, code)) << which << " " << code;
        for (uint32_t other = 0; other < 4; ++other) {
          EXPECT_EQ(pair(word, other) & ~(other == which ? 0xffffu << (16 * beside) : 0u), 0u);
        }
      }
    }
  }
}

TEST(WeightLayout, QuartersOfQ6KCompleteTheHalfBytesAtTheirPlaces) {
  for (uint32_t step = 0; step < 4; ++step) {
    for (uint32_t i = 0; i < 4; ++i) {
      for (uint32_t quarter = 0; quarter < 4; ++quarter) {
        uint32_t word = 0;
        for (uint32_t bit = 0; bit < 2; ++bit) word |= (quarter >> bit & 1) << quarter_bit(step, i, bit);
        if (step >= 2) word = std::rotl(word, 4);
        word >>= step % 2 * 8;
        EXPECT_EQ(word & 0x00300030u, i < 2 ? quarter << (4 + 16 * (i % 2)) : 0u) << step << " " << i;
        EXPECT_EQ(word & 0x000c000cu, i < 2 ? 0u : quarter << (2 + 16 * (i % 2))) << step << " " << i;
      }
    }
  }
}

TEST(WeightLayout, ALaneHoldsNeighboursThatShareAScale) {
  for (uint32_t k = 0; k < kBlockK; ++k) {
    const uint32_t in_step = position_of(k) % 16;
    EXPECT_EQ(in_step % 8 / 2, k / kGroupK);  // t of the lanes that hold positions 2t, 2t+1, 2t+8, 2t+9
  }
}

TEST(WeightLayout, PositionsAreAPermutationOfABlock) {
  std::set<uint32_t> positions;
  for (uint32_t k = 0; k < kBlockK; ++k) {
    positions.insert(position_of(k));
    EXPECT_EQ(k_at(position_of(k)), k);
  }
  EXPECT_EQ(positions.size(), kBlockK);
  EXPECT_EQ(*positions.rbegin(), kBlockK - 1);
}

TEST(WeightLayout, SlicesAreFourEqualOnesOfWholeBlocksOrOne) {
  for (uint32_t cols = 1; cols <= 20'000; cols += 63) {
    const WeightShape shape = {WeightFormat::bf16, 64, cols};
    const KPlan plan = shape.k_plan();
    EXPECT_EQ(plan.slices * plan.slice_blocks, shape.blocks());
    EXPECT_GE(shape.blocks() * kBlockK, cols);
    EXPECT_EQ(plan.slices, shape.blocks() % 4 == 0 ? 4u : 1u);
  }
  EXPECT_EQ(k_plan(4096 / kBlockK).slices, 4u);
  EXPECT_EQ(k_plan(768 / kBlockK).slices, 1u);  // a quarter would end inside a block
}

TEST(WeightLayout, RowsAndColumnsThatFillNoBlockArePadded) {
  const WeightShape shape = {WeightFormat::q4_0, 100, 576};
  EXPECT_EQ(shape.padded_rows(), 128u);
  EXPECT_EQ(shape.blocks(), 5u);
  EXPECT_EQ(shape.bytes(), 8u * 5 * 1152);
}

TEST(WeightLayout, TypesWithoutAFormOfTheirOwnBecomeBf16) {
  EXPECT_EQ(format_for(DType::q4_k), WeightFormat::q4_k);
  EXPECT_EQ(format_for(DType::q8_0), WeightFormat::q8_0);
  EXPECT_EQ(format_for(DType::q6_k), WeightFormat::q6_k);
  EXPECT_EQ(format_for(DType::mxfp4), WeightFormat::mxfp4);
  for (const DType dtype : {DType::f32, DType::f16, DType::q5_k, DType::iq4_xs}) {
    EXPECT_EQ(format_for(dtype), WeightFormat::bf16);
  }
}

TEST(ActivationLayout, EveryNumberHasAPlaceOfItsOwn) {
  for (const uint32_t tokens : {1u, 3u, 8u, 17u}) {
    constexpr uint32_t kCols = 384;
    std::set<size_t> places;
    for (uint32_t token = 0; token < tokens; ++token) {
      for (uint32_t k = 0; k < kCols; ++k) places.insert(activation_place(tokens, token, k));
    }
    EXPECT_EQ(places.size(), size_t(tokens) * kCols);
    EXPECT_EQ(*places.rbegin() + 2, activation_bytes(tokens, kCols));
  }
}

TEST(ActivationLayout, ATokensPiecesOf64KStandWithinItsRow) {
  for (uint32_t k = 0; k < 256; ++k) {
    const size_t place = activation_place(20, 13, k);
    EXPECT_EQ(place / kActivationRowBytes % 20, 13u);
    EXPECT_EQ(place / kActivationRowBytes / 20, k / 128 * 2 + position_of(k % 128) / 64);
  }
}

}  // namespace
}  // namespace quire::cuda
