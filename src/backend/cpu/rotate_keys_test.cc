// Keys that are made those of tokens that stand before their own.
#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "backend/cpu/attention/kv_rows.h"
#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/kernel_choice.h"

namespace quire {
namespace {

constexpr uint32_t kDim = 64, kRows = 24;

class RotateKeys : public testing::TestWithParam<std::tuple<KvFormat, RopePairing, uint32_t>> {
 protected:
  RotateKeys() {
    const auto pairs = std::get<2>(GetParam());
    for (uint32_t i = 0; i < pairs; ++i) frequencies_.push_back(float(std::pow(1e4, -double(i) / pairs)));
    std::normal_distribution<float> normal;
    std::mt19937 random(7);
    keys_.resize(kRows * kDim);
    for (float& value : keys_) value = normal(random);
  }

  // The stored key of a row's token at that position, and what attention reads of it.
  std::vector<float> key_at(uint32_t row, uint32_t position) const {
    const bool halves = std::get<1>(GetParam()) == RopePairing::halves;
    const size_t pairs = frequencies_.size();
    std::vector<float> key(keys_.begin() + row * kDim, keys_.begin() + (row + 1) * kDim);
    for (size_t i = 0; i < pairs; ++i) {
      float& a = key[halves ? i : 2 * i];
      float& b = key[halves ? i + pairs : 2 * i + 1];
      const double angle = double(position) * double(frequencies_[i]), x = a, y = b;
      a = float(x * std::cos(angle) - y * std::sin(angle));
      b = float(x * std::sin(angle) + y * std::cos(angle));
    }
    return key;
  }
  std::vector<float> read(const std::byte* stored) const {
    std::vector<float> key(kDim);
    load_kv_row(std::get<0>(GetParam()), stored, key);
    return key;
  }

  std::vector<float> frequencies_, keys_;
};

TEST_P(RotateKeys, MakesThemThoseOfEarlierTokensAndLeavesOthersAsTheyAre) {
  const KvFormat format = std::get<0>(GetParam());
  const std::vector<KvStream> streams{
      {.kv_heads = 1, .key_dim = kDim, .value_dim = kDim, .key_format = format, .value_format = format}};
  const KvLayout layout = make_kv_layout(streams, kRows);
  const KvLayerLayout& layer = layout.groups[0].layers[0];
  std::vector<std::byte> stored(kRows * layer.key_row_bytes), wanted(stored.size());
  std::vector<uint32_t> back(kRows);
  for (uint32_t row = 0; row < kRows; ++row) {
    const uint32_t position = 40 + row * 97;
    back[row] = row % 4 == 0 ? 0 : std::min(position, row * 61);
    store_kv_row(format, key_at(row, position), &stored[row * layer.key_row_bytes]);
    store_kv_row(format, key_at(row, position - back[row]), &wanted[row * layer.key_row_bytes]);
  }
  const std::vector<std::byte> before = stored;
  CpuBackend backend(kernels_named("auto"), 2);
  backend.rotate_keys({.keys = stored.data(),
                       .layer = &layer,
                       .back = back,
                       .inverse_frequencies = frequencies_,
                       .pairing = std::get<1>(GetParam())});
  // Rounded twice; by formats of few bits not alike.
  const double most = format == KvFormat::f32    ? 1e-5
                      : format == KvFormat::f16  ? 4e-3
                      : format == KvFormat::bf16 ? 3e-2
                      : is_turned(format)        ? 0.8
                      : format == KvFormat::int8 ? 0.06
                      : format == KvFormat::fp8  ? 0.35
                                                 : 0.8;
  for (uint32_t row = 0; row < kRows; ++row) {
    const size_t at = row * layer.key_row_bytes;
    if (back[row] == 0) {
      EXPECT_TRUE(std::equal(&stored[at], &stored[at] + layer.key_row_bytes, &before[at]));
      continue;
    }
    const std::vector<float> is = read(&stored[at]), was = read(&wanted[at]);
    for (uint32_t i = 0; i < kDim; ++i) EXPECT_NEAR(is[i], was[i], most) << "row " << row << " value " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, RotateKeys,
                         testing::Combine(testing::ValuesIn(kKvFormats),
                                          testing::Values(RopePairing::halves, RopePairing::interleaved),
                                          testing::Values(kDim / 2, kDim / 4)));

}  // namespace
}  // namespace quire
