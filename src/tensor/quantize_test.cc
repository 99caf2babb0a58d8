#include "tensor/quantize.h"

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace quire {
namespace {

std::vector<DType> writable_types() {
  std::vector<DType> types;
  for (size_t i = 0; i < kDTypeCount; ++i) {
    if (is_writable(DType(i))) types.push_back(DType(i));
  }
  return types;
}

std::vector<std::byte> quantize(DType dtype, const std::vector<float>& values) {
  std::vector<std::byte> bytes(row_bytes(dtype, values.size()));
  quantize_row(dtype, values, bytes.data());
  return bytes;
}

std::vector<float> dequantize(DType dtype, const std::vector<std::byte>& bytes) {
  std::vector<float> values(bytes.size() / traits(dtype).block_bytes * traits(dtype).block_values);
  dequantize_row(dtype, bytes.data(), values);
  return values;
}

std::vector<float> round_trip(DType dtype, const std::vector<float>& values) {
  return dequantize(dtype, quantize(dtype, values));
}

// Normal numbers by Box and Muller's formula from a generator whose outcome the standard fixes.
std::vector<float> gaussian(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> values(count);
  for (float& value : values) {
    const double u = (double(random()) + 1.0) / 4294967296.0, v = double(random()) / 4294967296.0;
    value = float(std::sqrt(-2.0 * std::log(u)) * std::cos(6.283185307179586 * v));
  }
  return values;
}

// Whose blocks hold what a book has, and not any values.
double relative_rms(const std::vector<float>& values, const std::vector<float>& reference) {
  double error = 0.0, total = 0.0;
  for (size_t i = 0; i < values.size(); ++i) {
    error += (double(values[i]) - reference[i]) * (double(values[i]) - reference[i]);
    total += double(reference[i]) * reference[i];
  }
  return std::sqrt(error / total);
}

TEST(DType, IsFoundByItsNameInAnyCase) {
  for (size_t i = 0; i < kDTypeCount; ++i) EXPECT_EQ(dtype_from_name(traits(DType(i)).name), DType(i));
  EXPECT_EQ(dtype_from_name("Q4_K"), DType::q4_k);
  EXPECT_EQ(dtype_from_name("IQ4_xs"), DType::iq4_xs);
  EXPECT_EQ(dtype_from_name("q4"), std::nullopt);
  EXPECT_EQ(dtype_from_name(""), std::nullopt);
}

TEST(DType, KnowsTheBytesOfARow) {
  EXPECT_EQ(row_bytes(DType::f32, 3), 12u);
  EXPECT_EQ(row_bytes(DType::q4_0, 64), 36u);
  EXPECT_EQ(row_bytes(DType::q6_k, 512), 420u);
  EXPECT_EQ(row_bytes(DType::mxfp4, 32), 17u);
  EXPECT_DEATH(row_bytes(DType::q4_0, 33), "");
}

TEST(Quantize, StaysWithinTheErrorOfItsFormat) {
  const struct {
    DType dtype;
    double relative_rms;  // about 2 % above what is measured
  } bounds[] = {
      {DType::f32, 0.0},      {DType::f16, 0.000212},   {DType::bf16, 0.0017},    {DType::f8_e4m3, 0.027},
      {DType::q4_0, 0.0875},  {DType::q4_1, 0.0715},    {DType::q5_0, 0.0440},    {DType::q5_1, 0.0342},
      {DType::q8_0, 0.00550}, {DType::q2_k, 0.2750},    {DType::q3_k, 0.1485},    {DType::q4_k, 0.0722},
      {DType::q5_k, 0.0354},  {DType::q6_k, 0.0173},    {DType::iq4_nl, 0.0755},  {DType::iq4_xs, 0.0760},
      {DType::mxfp4, 0.1140}, {DType::tq1_0, 0.4370},   {DType::tq2_0, 0.4370},   {DType::q1_0, 0.6030},
      {DType::q2_0, 0.3620},  {DType::nvfp4, 0.0839},   {DType::iq2_xxs, 0.3360}, {DType::iq2_xs, 0.2915},
      {DType::iq2_s, 0.2450}, {DType::iq3_xxs, 0.1815}, {DType::iq3_s, 0.1330},   {DType::iq1_s, 0.4610},
      {DType::iq1_m, 0.4280}};
  ASSERT_EQ(std::size(bounds), writable_types().size());
  for (float spread : {1.0f, 0.02f, 300.0f}) {
    std::vector<float> values = gaussian(256 * 256, 7);
    for (float& value : values) value *= spread;
    for (const auto& [dtype, bound] : bounds) {
      // No scale, or one of few bits: the range is the values'.
      if ((dtype == DType::f8_e4m3 || dtype == DType::nvfp4) && spread != 1.0f) continue;
      const double error = relative_rms(round_trip(dtype, values), values);
      EXPECT_LE(error, bound) << traits(dtype).name << " x " << spread;
      EXPECT_GE(error, bound * 0.95) << traits(dtype).name << " x " << spread;  // the bound is a tight one
    }
  }
}

TEST(Quantize, LosesLessWhereErrorsMatterMore) {
  const std::vector<float> values = gaussian(256 * 64, 12);
  std::vector<float> importance(values.size(), 0.5f);
  for (size_t i = 0; i < importance.size(); i += 4) importance[i] = 2.0f;
  const auto weighted = [&](const std::vector<float>& out) {
    double sum = 0;
    for (size_t i = 0; i < out.size(); ++i)
      sum += double(importance[i]) * (double(out[i]) - values[i]) * (double(out[i]) - values[i]);
    return sum;
  };
  for (DType dtype :
       {DType::q4_0, DType::q4_1, DType::q5_0, DType::q5_1, DType::q2_k, DType::q3_k, DType::q4_k,
        DType::q5_k, DType::q6_k, DType::iq4_nl, DType::iq4_xs, DType::iq2_xxs, DType::iq2_xs, DType::iq2_s,
        DType::iq3_xxs, DType::iq3_s, DType::iq1_s, DType::iq1_m}) {
    std::vector<std::byte> bytes(row_bytes(dtype, values.size()));
    quantize_row(dtype, values, bytes.data(), importance);
    EXPECT_LT(weighted(dequantize(dtype, bytes)), 0.98 * weighted(round_trip(dtype, values)))
        << traits(dtype).name;
  }
}

TEST(Quantize, FollowsValuesFarFromZeroWhereTheFormatHasAnOffset) {
  std::vector<float> values = gaussian(256 * 16, 8);
  for (float& value : values) value = 0.01f * value - 1.0f;
  EXPECT_LE(relative_rms(round_trip(DType::q4_1, values), values), 0.001);
  EXPECT_LE(relative_rms(round_trip(DType::q5_1, values), values), 0.0005);
  // Their minimum is a multiple of a common one, so that its rounding dominates.
  EXPECT_LE(relative_rms(round_trip(DType::q4_k, values), values), 0.003);
  EXPECT_LE(relative_rms(round_trip(DType::q5_k, values), values), 0.002);
  EXPECT_LE(relative_rms(round_trip(DType::q2_k, values), values), 0.008);
  for (float& value : values) value = -value;  // above zero q4_1 still has its offset
  EXPECT_LE(relative_rms(round_trip(DType::q4_1, values), values), 0.001);
}

TEST(Quantize, ChangesNothingTheSecondTime) {
  const std::vector<float> values = gaussian(256 * 64, 9);
  for (DType dtype :
       {DType::f32, DType::f16, DType::bf16, DType::f8_e4m3, DType::q4_0, DType::q5_0, DType::q8_0}) {
    const auto bytes = quantize(dtype, values);
    EXPECT_EQ(quantize(dtype, dequantize(dtype, bytes)), bytes) << traits(dtype).name;
  }
  // The same floats can have two exponents; their values are the same.
  const auto once = round_trip(DType::mxfp4, values);
  EXPECT_EQ(round_trip(DType::mxfp4, once), once);
}

TEST(Quantize, GivesTheSameBytesForABlockWhateverItsNeighbours) {
  const std::vector<float> values = gaussian(256 * 3, 10);
  for (DType dtype : writable_types()) {
    const auto row = quantize(dtype, values);
    const auto middle = quantize(dtype, std::vector<float>(values.begin() + 256, values.begin() + 512));
    EXPECT_TRUE(std::equal(middle.begin(), middle.end(), row.begin() + std::ptrdiff_t(middle.size())))
        << traits(dtype).name;
  }
}

TEST(Quantize, KeepsZero) {
  const std::vector<float> zeros(512, 0.0f);
  for (DType dtype : writable_types()) EXPECT_EQ(round_trip(dtype, zeros), zeros) << traits(dtype).name;
}

TEST(Quantize, KeepsABlockOfOneValueRepeated) {
  for (float value : {1.0f, -1.0f, 0.37f, -250.0f}) {
    const std::vector<float> values(256, value);
    for (DType dtype : writable_types()) {
      // The steps of these are as coarse for one value as for many.
      const bool is_float = dtype == DType::f8_e4m3 || dtype == DType::nvfp4;
      const double bound = has_book(dtype) ? 0.34 : dtype == DType::mxfp4 ? 0.2 : is_float ? 0.063 : 0.005;
      EXPECT_LE(relative_rms(round_trip(dtype, values), values), bound) << traits(dtype).name << " " << value;
    }
  }
}

TEST(Quantize, KeepsALoneLargeValueAmongZeros) {
  std::vector<float> values(256, 0.0f);
  values[77] = -3.0f;
  for (DType dtype : writable_types()) {
    if (dtype == DType::q1_0 || has_book(dtype)) continue;  // which have nothing so near zero
    // IQ4 has no zero: the other 31 values of the block become 1 where the large one is -127.
    const double bound = dtype == DType::iq4_nl || dtype == DType::iq4_xs ? std::sqrt(31.0) / 127.0 : 0.0025;
    EXPECT_LE(relative_rms(round_trip(dtype, values), values), bound * 1.001) << traits(dtype).name;
  }
}

TEST(Quantize, SurvivesAnyInput) {
  using Limits = std::numeric_limits<float>;
  const float special[] = {Limits::quiet_NaN(),
                           Limits::infinity(),
                           -Limits::infinity(),
                           Limits::max(),
                           Limits::lowest(),
                           Limits::min(),
                           Limits::denorm_min(),
                           -0.0f,
                           1e-40f,
                           1e-20f,
                           1e-8f,
                           6e-8f,
                           1e5f,
                           -3e8f,
                           1e20f,
                           1.0f};
  std::mt19937 random(11);
  for (int round = 0; round < 300; ++round) {
    std::vector<float> values = gaussian(256, uint32_t(round));
    // A single special value everywhere; then one, then several of them among others.
    for (size_t i = 0; i < 256; ++i) {
      if (round < 16) {
        values[i] = special[round];
      } else if (random() % (round % 2 == 0 ? 256 : 8) == 0) {
        values[i] = special[random() % std::size(special)];
      }
    }
    for (DType dtype : writable_types()) {
      const auto out = round_trip(dtype, values);
      if (traits(dtype).block_values == 1) continue;
      for (size_t i = 0; i < 256; ++i)
        ASSERT_TRUE(std::isfinite(out[i])) << traits(dtype).name << " " << round;
    }
  }
}

TEST(Quantize, CutsWhatIsTooLargeAndTakesNaNForZero) {
  std::vector<float> values(256, 0.0f);
  values[3] = std::numeric_limits<float>::quiet_NaN();
  values[40] = std::numeric_limits<float>::infinity();
  values[41] = -std::numeric_limits<float>::infinity();
  for (DType dtype : writable_types()) {
    if (traits(dtype).block_values == 1) continue;
    const auto out = round_trip(dtype, values);
    if (dtype == DType::q1_0) continue;
    if (dtype == DType::tq1_0 || dtype == DType::tq2_0 || dtype == DType::q2_0 || dtype == DType::nvfp4) {
      EXPECT_GT(out[40], 2e3f) << traits(dtype).name;
      EXPECT_EQ(out[3], 0.0f);
      continue;
    }
    EXPECT_GT(out[40], 4e5f) << traits(dtype).name;  // at least half of what a scale of 65504 gives
    EXPECT_EQ(std::fabs(out[3]) <= 0.2f * out[40], true) << traits(dtype).name;
  }
}

}  // namespace
}  // namespace quire
