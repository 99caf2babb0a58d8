// The house model and its draft through the exact kernels, against the logits that PyTorch computes from the same
// quantized weights.
#include <algorithm>
#include <cmath>
#include <cstring>

#include <gtest/gtest.h>

#include "base/json.h"
#include "golden_model.h"

namespace quire {
namespace {

std::vector<float> floats_of_base64(const std::string& text) {
  const std::string digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  uint32_t bits = 0, count = 0;
  for (char c : text) {
    const size_t digit = digits.find(c);
    if (digit == std::string::npos) break;
    bits = bits << 6 | uint32_t(digit);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes.push_back(char(bits >> count & 0xff));
  }
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  return values;
}

class HouseGolden : public testing::TestWithParam<const char*> {};

TEST_P(HouseGolden, LogitsAreThoseOfPyTorchToOneInTenThousandOfTheLargest) {
  const Json golden = read_json_file(QUIRE_SOURCE_DIR "/tests/house_golden.json");
  BareModel model(std::string(QUIRE_SOURCE_DIR "/models/house/") + GetParam() + ".gguf", exact_kernels(), 2);
  for (const Json& prompt : golden[GetParam()]) {
    const auto tokens = prompt["tokens"].get<std::vector<TokenId>>();
    const std::vector<float> expected = floats_of_base64(prompt["logits"].get<std::string>());
    ASSERT_EQ(expected.size() % model.spec.vocab, 0u);
    ASSERT_GT(expected.size(), 0u);
    const std::vector<float> all = all_logits(model, tokens, 50);
    const std::span<const float> actual = std::span(all).last(expected.size());
    float largest = 0, difference = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      largest = std::max(largest, std::fabs(expected[i]));
      difference = std::max(difference, std::fabs(expected[i] - actual[i]));
    }
    EXPECT_LE(difference, 1e-4f * largest) << tokens.size() << " tokens";
    RecordProperty("difference_" + std::to_string(tokens.size()), std::to_string(difference / largest));
  }
}

INSTANTIATE_TEST_SUITE_P(Models, HouseGolden, testing::Values("house", "draft"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace quire
