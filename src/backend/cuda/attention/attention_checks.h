#pragma once

#include <cstring>

#include "backend/cuda/attention/attention_case.h"
#include "backend/cuda/device_case.h"

// Of tests only: how the results of two kernels of attention are compared.

namespace quire::cuda {

class Attention : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (!IsSkipped() && compute_capability() != 90) GTEST_SKIP() << "this GPU is not of Hopper's kind";
  }
};

// How many of some tokens' numbers differ, by their bits.
inline size_t differing(const std::vector<float>& a, const std::vector<float>& b,
                        const std::vector<PlainRow>& rows, size_t width) {
  size_t count = 0;
  for (const PlainRow& row : rows) {
    for (size_t i = row.token * width; i < (row.token + 1) * width; ++i)
      count += std::memcmp(&a[i], &b[i], sizeof(float)) != 0;
  }
  return count;
}

inline size_t differing(const std::vector<float>& a, const std::vector<float>& b) {
  size_t count = 0;
  for (size_t i = 0; i < a.size(); ++i) count += std::memcmp(&a[i], &b[i], sizeof(float)) != 0;
  return count;
}

// Where they differ, for a person.
inline std::string places(const std::vector<float>& a, const std::vector<float>& b,
                          const AttentionFixture& fixture) {
  std::string text;
  const size_t dim = fixture.test().value_dim, heads = fixture.test().heads();
  size_t listed = 0;
  for (size_t row = 0; row < a.size() / dim && listed < 12; ++row) {
    size_t count = 0, first = dim, last = 0;
    for (size_t d = 0; d < dim; ++d) {
      if (std::memcmp(&a[row * dim + d], &b[row * dim + d], sizeof(float)) == 0) continue;
      ++count;
      first = std::min(first, d);
      last = d;
    }
    if (count == 0) continue;
    ++listed;
    text += " token " + std::to_string(row / heads) + " head " + std::to_string(row % heads) + ": " +
            std::to_string(count) + " from " + std::to_string(first) + " to " + std::to_string(last) + ", " +
            std::to_string(a[row * dim + first]) + " for " + std::to_string(b[row * dim + first]) + ";";
  }
  return text;
}

inline std::vector<AttentionCase> fast_cases() {
  std::vector<AttentionCase> cases;
  cases.push_back({});
  cases.push_back({.key_dim = 64, .value_dim = 64});
  cases.push_back({.key_format = KvFormat::f16, .value_format = KvFormat::f16});
  cases.push_back(
      {.key_format = KvFormat::f16, .value_format = KvFormat::f16, .key_dim = 64, .value_dim = 64});
  cases.push_back({.query_size = 12});
  cases.push_back({.kv_heads = 1, .group = 16, .lengths = {700, 1, 130}});
  cases.push_back({.kv_heads = 3, .group = 1, .key_dim = 64, .value_dim = 64, .lengths = {900, 33}});
  for (const uint32_t group : {2u, 3u, 5u, 6u, 7u, 8u, 12u})
    cases.push_back({.kv_heads = 2, .group = group, .query_size = 4, .lengths = {300, 640, 1}});
  cases.push_back({.page_tokens = 16, .lengths = {1111, 65}});
  cases.push_back({.page_tokens = 48, .lengths = {1111, 65}});
  cases.push_back({.page_tokens = 64, .lengths = {1111, 65}});
  cases.push_back({.page_tokens = 256, .lengths = {1111, 65}});
  for (const uint32_t window : {1u, 100u, 128u, 513u, 1024u})
    cases.push_back({.window = window, .query_size = 6, .lengths = {1500, 40}});
  cases.push_back({.soft_cap = 30, .query_size = 12, .lengths = {1300, 200}});
  cases.push_back({.key_dim = 64, .value_dim = 64, .has_sinks = true, .lengths = {1300, 200}});
  cases.push_back({.group = 8,
                   .key_dim = 64,
                   .value_dim = 64,
                   .window = 128,
                   .soft_cap = 20,
                   .has_sinks = true,
                   .lengths = {1300, 200}});
  cases.push_back({.kv_heads = 1, .lengths = {8500}});
  return cases;
}

inline std::string describe(const AttentionCase& test) {
  return std::string(name(test.key_format)) + " and " + std::string(name(test.value_format)) + ", heads " +
         std::to_string(test.kv_heads) + " x " + std::to_string(test.group) + " of " +
         std::to_string(test.key_dim) + (test.key_goes_on ? " and on in " : " and ") +
         std::to_string(test.value_dim) + ", pages of " + std::to_string(test.page_tokens) + ", window " +
         std::to_string(test.window) + ", cap " + std::to_string(test.soft_cap) +
         (test.has_sinks ? ", sinks" : "");
}

}  // namespace quire::cuda
