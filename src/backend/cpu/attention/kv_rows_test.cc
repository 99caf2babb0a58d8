#include "backend/cpu/attention/kv_rows.h"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "tensor/float8.h"

namespace quire {
namespace {

std::vector<float> random_row(size_t dim, uint32_t seed, float outlier = 0) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> row(dim);
  for (float& v : row) v = normal(random);
  if (outlier != 0) row[seed % dim] = outlier;
  return row;
}

std::vector<float> round_trip(KvFormat format, const std::vector<float>& row) {
  std::vector<std::byte> bytes(kv_row_bytes(format, row.size()) + 1, std::byte{0x5a});
  store_kv_row(format, row, bytes.data());
  EXPECT_EQ(bytes.back(), std::byte{0x5a}) << "a row is written no further than its bytes";
  std::vector<float> read(row.size());
  load_kv_row(format, bytes.data(), read);
  if (is_turned(format)) turn_kv_row(read);
  return read;
}

double relative_error(const std::vector<float>& row, const std::vector<float>& read) {
  double error = 0, sum = 0;
  for (size_t i = 0; i < row.size(); ++i) {
    error += std::pow(double(row[i]) - double(read[i]), 2);
    sum += std::pow(double(row[i]), 2);
  }
  return std::sqrt(error / sum);
}

TEST(KvRows, ComeBackAsNearAsTheirFormatAllows) {
  const std::pair<KvFormat, double> bounds[] = {
      {KvFormat::f32, 0},     {KvFormat::f16, 4e-4}, {KvFormat::bf16, 3e-3},    {KvFormat::int8, 0.012},
      {KvFormat::fp8, 0.036}, {KvFormat::q4, 0.13},  {KvFormat::q4_plain, 0.13}};
  for (const auto& [format, bound] : bounds) {
    for (const size_t dim : {8u, 24u, 64u, 80u, 128u}) {
      for (uint32_t seed = 0; seed < 20; ++seed) {
        const std::vector<float> row = random_row(dim, seed);
        ASSERT_LE(relative_error(row, round_trip(format, row)), bound)
            << name(format) << " " << dim << " " << seed;
      }
    }
  }
}

TEST(KvRows, ATurnedRowLosesLessToAnOutlier) {
  double turned = 0, plain = 0;
  for (uint32_t seed = 0; seed < 50; ++seed) {
    std::vector<float> row = random_row(128, seed, 30.0f);
    std::vector<float> with = round_trip(KvFormat::q4, row), without = round_trip(KvFormat::q4_plain, row);
    row[seed % 128] = with[seed % 128] = without[seed % 128] = 0;  // of the others
    turned += relative_error(row, with);
    plain += relative_error(row, without);
  }
  EXPECT_LT(turned, 0.6 * plain);
}

TEST(KvRows, TurningTwiceIsNothingAndKeepsProducts) {
  for (const size_t dim : {1u, 2u, 24u, 64u, 80u, 128u}) {
    const std::vector<float> a = random_row(dim, 1), b = random_row(dim, 2);
    std::vector<float> turned_a = a, turned_b = b;
    turn_kv_row(turned_a);
    turn_kv_row(turned_b);
    double product = 0, turned = 0;
    for (size_t i = 0; i < dim; ++i) {
      product += double(a[i]) * double(b[i]);
      turned += double(turned_a[i]) * double(turned_b[i]);
    }
    EXPECT_NEAR(product, turned, 1e-5) << dim;
    turn_kv_row(turned_a);
    EXPECT_LT(relative_error(a, turned_a), 1e-6) << dim;
  }
}

TEST(KvRows, ZerosAndTinyValuesStayFiniteAndNaNIsSeen) {
  for (const KvFormat format : kKvFormats) {
    for (const float value : {0.0f, 1e-30f, -1e-7f, 3e-5f}) {
      for (const float read : round_trip(format, std::vector<float>(64, value)))
        ASSERT_NEAR(read, value, 1e-5) << name(format);
    }
    std::vector<float> row(64, 1.0f);
    row[5] = std::numeric_limits<float>::quiet_NaN();
    ASSERT_TRUE(std::isnan(round_trip(format, row)[5])) << name(format);
    row[5] = std::numeric_limits<float>::infinity();
    ASSERT_FALSE(std::isfinite(round_trip(format, row)[5])) << name(format);
  }
}

TEST(KvRows, EveryCodeOfFp8IsReadAsItsDefinitionSays) {
  for (uint32_t code = 0; code < 256; ++code) {
    if ((code & 0x7f) == 0x7f) continue;  // NaN, which is never written
    std::vector<std::byte> row(18, std::byte(code));
    row[16] = std::byte{0x00};
    row[17] = std::byte{0x3c};  // 1
    std::vector<float> read(16);
    load_kv_row(KvFormat::fp8, row.data(), read);
    ASSERT_EQ(read[3], f8_e4m3_to_f32(uint8_t(code))) << code;
  }
}

}  // namespace
}  // namespace quire
