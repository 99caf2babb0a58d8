#include "backend/cuda/weight_layout.h"

#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "backend/cuda/activation_layout.h"

namespace quire::cuda {
namespace {

constexpr WeightFormat kFormats[] = {WeightFormat::bf16, WeightFormat::q8_0, WeightFormat::q4_0,
                                     WeightFormat::q4_k};

TEST(WeightLayout, EveryCodeOfABlockHasAPlaceOfItsOwnBelowTheScales) {
  for (const WeightFormat format : kFormats) {
    const bool halves = format == WeightFormat::q4_0 || format == WeightFormat::q4_k;
    std::set<uint32_t> places;
    for (uint32_t row = 0; row < kTileRows; ++row) {
      for (uint32_t k = 0; k < kBlockK; ++k) {
        const CodePlace place = code_place(format, row, k);
        places.insert(place.byte * 8 + place.shift);
        EXPECT_TRUE(place.shift == 0 || (halves && place.shift == 4));
      }
    }
    const uint32_t code_bits = format == WeightFormat::bf16 ? 16 : halves ? 4 : 8;
    EXPECT_EQ(places.size(), kTileRows * kBlockK) << name(format);
    EXPECT_EQ(*places.rbegin(), (kTileRows * kBlockK - 1) * code_bits) << name(format);
  }
}

TEST(WeightLayout, ScalesFollowTheCodesAndFillTheBlock) {
  for (const WeightFormat format : {WeightFormat::q8_0, WeightFormat::q4_0, WeightFormat::q4_k}) {
    std::set<uint32_t> places;
    for (uint32_t row = 0; row < kTileRows; ++row) {
      for (uint32_t group = 0; group < 4; ++group) {
        const uint32_t place = scale_place(format, row, group);
        places.insert(place);
        if (format == WeightFormat::q4_k) places.insert(place + 4);
      }
    }
    EXPECT_EQ(*places.begin(), format == WeightFormat::q8_0 ? 2048u : 1024u) << name(format);
    EXPECT_EQ(*places.rbegin() + 2, block_bytes(format)) << name(format);
    EXPECT_EQ(places.size(), (block_bytes(format) - *places.begin()) / 2) << name(format);
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
  for (const DType dtype : {DType::f32, DType::f16, DType::q6_k, DType::iq4_xs, DType::mxfp4}) {
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
