#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "made_model.h"

// Made models beside what they are by a plain computation.

namespace quire {

inline std::vector<TokenId> some_tokens(size_t count = 45) {  // more than a page
  std::vector<TokenId> tokens(count);
  for (size_t i = 0; i < count; ++i) tokens[i] = TokenId((i * i * 7 + i * 3 + 1) % 40);
  return tokens;
}

inline std::vector<float> logits(const std::shared_ptr<const MadeFile>& file, const CpuKernels& kernels,
                                 uint32_t chunk = 64, const KvFormats& formats = KvFormat::f32) {
  BareModel model(file, file->spec(), kernels, 2);
  return all_logits(model, some_tokens(), chunk, formats);
}

inline void expect_near(const std::vector<float>& seen, const std::vector<double>& plain,
                        double tolerance = 1e-5) {
  ASSERT_EQ(seen.size(), plain.size());
  double largest = 0;
  for (const double value : plain) largest = std::max(largest, std::abs(value));
  ASSERT_GT(largest, 0.1);
  for (size_t i = 0; i < plain.size(); ++i) ASSERT_NEAR(seen[i], plain[i], tolerance * largest) << i;
}

// What the model must be, and that chunks and formats of the cache do not break it.
inline void expect_plain(const std::shared_ptr<const MadeFile>& file) {
  expect_near(logits(file, exact_kernels()), plain_logits(*file, some_tokens()));
  for (const auto& [format, tolerance] : {std::pair(KvFormat::f16, 0.01), std::pair(KvFormat::int8, 0.1)}) {
    const std::vector<float> whole = logits(file, scalar_kernels(), 64, format);
    EXPECT_EQ(whole, logits(file, scalar_kernels(), 7, format));
    expect_near(whole, plain_logits(*file, some_tokens()), tolerance);
  }
}

inline std::shared_ptr<MadeFile> make(const Metadata& metadata,
                                      const std::function<void(ModelSpec&)>& change = {}) {
  return std::make_shared<MadeFile>(metadata, change);
}

// Of a toy mixer: a row is key and value at once, and what is made of it is the mean of it and the one before. REQUIRES: the
// first stream is one head of rows with a window of 2, the scratch one row.
inline void store_and_mean_two(const BlockStep& step, uint32_t dim) {
  const Rows rows = step.in.f32, query = step.scratch[0].f32;
  step.backend.rope_store(
      {.query = query, .key = rows, .value = rows, .head_dim = dim, .cos = {}, .sin = {}, .kv = step.kv[0]});
  AttendParams attend{.query = query, .heads = 1, .kv = step.kv[0], .scale = 0, .sinks = {}, .out = {}};
  attend.out.f32 = step.out;
  step.backend.attend(attend);
}

}  // namespace quire
