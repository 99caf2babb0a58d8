#include "backend/cpu/vector_math.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "backend/cpu/nonlinearity.h"

namespace quire {
namespace {

TEST(VectorMath, ExpIsThatOfTheLibraryToAFewUnitsInTheLastPlace) {
  for (float x = -86.5f; x < 88.0f; x += 0.0137f) {
    const double expected = std::exp(double(x));
    EXPECT_NEAR(double(exp4(all4(x))[2]) / expected, 1.0, 3e-7) << x;
  }
  EXPECT_EQ(exp4(all4(0.0f))[0], 1.0f);
}

TEST(VectorMath, ExpKnowsTheEndsOfTheNumbers) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(exp4(all4(-infinity))[0], 0.0f);
  EXPECT_EQ(exp4(all4(-1000.0f))[0], 0.0f);
  EXPECT_EQ(exp4(all4(infinity))[0], infinity);
  EXPECT_TRUE(std::isnan(exp4(all4(NAN))[0]));
}

TEST(VectorMath, ALaneDoesNotSeeTheOthers) {
  const F32x4 mixed = exp4(F32x4{-1.5f, NAN, 1000.0f, -std::numeric_limits<float>::infinity()});
  EXPECT_EQ(mixed[0], exp4(all4(-1.5f))[0]);
}

TEST(Nonlinearity, IsTheFunctionItIsNamedAfter) {
  const auto reference = [](Nonlinearity kind, double x) {
    if (kind == Nonlinearity::silu) return x / (1 + std::exp(-x));
    if (kind == Nonlinearity::gelu_erf) return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
    return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
  };
  std::vector<float> gate, up;
  for (float x = -12.0f; x < 12.0f; x += 0.0371f) {  // an odd number of them
    gate.push_back(x);
    up.push_back(1.0f + x / 20);
  }
  std::vector<float> out(gate.size());
  for (Nonlinearity kind : {Nonlinearity::silu, Nonlinearity::gelu_tanh, Nonlinearity::gelu_erf}) {
    activate_row({.kind = kind}, gate.data(), up.data(), out.data(), gate.size());
    for (size_t i = 0; i < gate.size(); ++i) {
      EXPECT_NEAR(out[i], reference(kind, gate[i]) * double(up[i]), 4e-6) << int(kind) << " " << gate[i];
    }
    activate_row({.kind = kind}, gate.data(), nullptr, out.data(), gate.size());
    EXPECT_NEAR(out[3], reference(kind, gate[3]), 4e-6);
  }
}

}  // namespace
}  // namespace quire
