#include "model/product_type.h"

#include <cstring>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "tensor/quantize.h"

namespace quire {
namespace {

TEST(ProductType, HasTheSameNumbersToTheBit) {
  std::mt19937 random(3);
  for (DType dtype : {DType::tq1_0, DType::tq2_0, DType::q1_0, DType::q2_0}) {
    constexpr size_t kCols = 512, kRows = 5;
    std::vector<std::byte> in(kRows * row_bytes(dtype, kCols));
    for (std::byte& byte : in) byte = std::byte(random() & 0x7b);  // scales are finite
    const DType to = product_type(dtype);
    ASSERT_NE(to, dtype);
    std::vector<std::byte> out(kRows * row_bytes(to, kCols));
    rewrite_for_products(dtype, in, out);
    std::vector<float> before(kRows * kCols), after(kRows * kCols);
    dequantize_row(dtype, in.data(), before);
    dequantize_row(to, out.data(), after);
    EXPECT_EQ(before, after) << traits(dtype).name;
  }
}

TEST(ProductType, OfWhatIsMultipliedAsItIsIsItself) {
  for (DType dtype : {DType::f32, DType::q4_0, DType::iq2_xs, DType::iq1_m, DType::mxfp4, DType::nvfp4})
    EXPECT_EQ(product_type(dtype), dtype);
}

}  // namespace
}  // namespace quire
