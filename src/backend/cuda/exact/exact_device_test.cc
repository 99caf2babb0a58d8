#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "backend/cuda/attention/attention_case.h"
#include "backend/cuda/device_case.h"
#include "backend/cuda/exact/exact.h"

namespace quire::cuda {
namespace {

using Exact = DeviceTest;

std::vector<float> normal_numbers(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

Rows device_rows(const DeviceBuffer& buffer, size_t rows, size_t width) {
  return {buffer.as<float>(), rows, width, width};
}

Weight weight_of(const std::vector<float>& values, size_t rows) {
  return {{reinterpret_cast<const std::byte*>(values.data()), DType::f32, rows, values.size() / rows},
          nullptr};
}

// Of the largest number.
double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double worst = 0, largest = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    worst = std::max(worst, std::abs(double(a[i]) - double(b[i])));
    largest = std::max(largest, std::abs(double(b[i])));
  }
  return worst / largest;
}

TEST_F(Exact, MultipliesWithinTheLastPlace) {
  for (const uint32_t cols : {1u, 37u, 1000u}) {
    constexpr uint32_t kRows = 13;
    const std::vector<float> weight = normal_numbers(kRows * cols, 1), bias = normal_numbers(kRows, 2);
    const DeviceBuffer device_weight = DeviceBuffer::of(weight), device_bias = DeviceBuffer::of(bias);
    std::vector<float> alone;
    for (const uint32_t tokens : {1u, 8u, 21u}) {
      const std::vector<float> in = normal_numbers(tokens * cols, 3);
      const DeviceBuffer device_in = DeviceBuffer::of(in), out(tokens * kRows * sizeof(float));
      const Stream stream;
      CUDA_CHECK(cudaDeviceSynchronize());
      exact_product({.weight = device_weight.as<float>(),
                     .bias = device_bias.as<float>(),
                     .in = device_rows(device_in, tokens, cols),
                     .out = device_rows(out, tokens, kRows)},
                    stream.get());
      stream.wait();
      std::vector<float> wanted;
      for (uint32_t i = 0; i < tokens * kRows; ++i) {
        double sum = double(bias[i % kRows]);
        for (uint32_t c = 0; c < cols; ++c)
          sum += double(weight[i % kRows * cols + c]) * double(in[i / kRows * cols + c]);
        wanted.push_back(float(sum));
      }
      const std::vector<float> got = out.download<float>();
      EXPECT_LT(distance(got, wanted), 2e-7);
      if (tokens == 1) alone = got;
      EXPECT_TRUE(std::equal(alone.begin(), alone.end(), got.begin())) << tokens;
    }
  }
}

void compare_experts(bool gated) {
  constexpr uint32_t kTokens = 7, kDim = 48, kWidth = 20, kExperts = 5, kUsed = 2;
  const std::vector<float> gate = normal_numbers(kExperts * kWidth * kDim, 1),
                           up = normal_numbers(kExperts * kWidth * kDim, 2);
  const std::vector<float> down = normal_numbers(kExperts * kDim * kWidth, 3),
                           gate_bias = normal_numbers(kExperts * kWidth, 4);
  const std::vector<float> down_bias = normal_numbers(kExperts * kDim, 5),
                           shares = normal_numbers(kTokens * kUsed, 6);
  std::vector<float> in = normal_numbers(kTokens * kDim, 7), wanted(kTokens * kDim);
  std::vector<uint32_t> experts;
  for (uint32_t i = 0; i < kTokens * kUsed; ++i) experts.push_back(i * 3 % kExperts);
  CpuBackend cpu(exact_kernels(), 1);
  Activation activation;
  activation.f32 = {in.data(), kTokens, kDim, kDim};
  cpu.project_experts({.in = activation,
                       .experts = experts,
                       .shares = shares,
                       .used = kUsed,
                       .expert_width = kWidth,
                       .gate = gated ? weight_of(gate, kExperts * kWidth) : Weight{},
                       .up = weight_of(up, kExperts * kWidth),
                       .down = weight_of(down, kExperts * kDim),
                       .gate_bias = gated ? weight_of(gate_bias, 1) : Weight{},
                       .up_bias = {},
                       .down_bias = weight_of(down_bias, 1),
                       .function = {.kind = gated ? Nonlinearity::silu : Nonlinearity::squared_relu},
                       .out = {wanted.data(), kTokens, kDim, kDim}});
  const DeviceBuffer buffers[] = {DeviceBuffer::of(gate),      DeviceBuffer::of(up),
                                  DeviceBuffer::of(down),      DeviceBuffer::of(gate_bias),
                                  DeviceBuffer::of(down_bias), DeviceBuffer::of(shares),
                                  DeviceBuffer::of(in)};
  const DeviceBuffer device_experts = DeviceBuffer::of(experts), out(wanted.size() * sizeof(float));
  const DeviceBuffer scratch(exact_expert_bytes(kTokens, kUsed, kWidth, kDim));
  const Stream stream;
  CUDA_CHECK(cudaDeviceSynchronize());
  exact_experts({.in = device_rows(buffers[6], kTokens, kDim),
                 .experts = device_experts.as<uint32_t>(),
                 .shares = buffers[5].as<float>(),
                 .used = kUsed,
                 .expert_width = kWidth,
                 .gate = gated ? buffers[0].as<float>() : nullptr,
                 .up = buffers[1].as<float>(),
                 .down = buffers[2].as<float>(),
                 .gate_bias = gated ? buffers[3].as<float>() : nullptr,
                 .up_bias = nullptr,
                 .down_bias = buffers[4].as<float>(),
                 .function = {.kind = gated ? Nonlinearity::silu : Nonlinearity::squared_relu},
                 .out = device_rows(out, kTokens, kDim),
                 .scratch = scratch.as<float>()},
                stream.get());
  stream.wait();
  EXPECT_LT(distance(out.download<float>(), wanted), 1e-6);
}

TEST_F(Exact, ProjectsHeadsWithinTheLastPlace) {
  constexpr uint32_t kTokens = 5, kHeads = 3, kRows = 13, kCols = 37, kRest = 4;
  const std::vector<float> weight = normal_numbers(kHeads * kRows * kCols, 1);
  const std::vector<float> in = normal_numbers(kTokens * kHeads * (kCols + kRest), 2);
  const DeviceBuffer device_weight = DeviceBuffer::of(weight), device_in = DeviceBuffer::of(in);
  const DeviceBuffer out(size_t(kTokens) * kHeads * (kRest + kRows) * sizeof(float));
  const Stream stream;
  CUDA_CHECK(cudaDeviceSynchronize());
  exact_heads({.in = device_rows(device_in, kTokens, kHeads * (kCols + kRest)),
               .weight = device_weight.as<float>(),
               .heads = kHeads,
               .rows = kRows,
               .cols = kCols,
               .out = device_rows(out, kTokens, kHeads * (kRest + kRows))},
              stream.get());
  stream.wait();
  std::vector<float> wanted;
  for (uint32_t i = 0; i < kTokens * kHeads; ++i) {
    const float* from = &in[i * (kCols + kRest)];
    wanted.insert(wanted.end(), from + kCols, from + kCols + kRest);
    for (uint32_t row = 0; row < kRows; ++row) {
      double sum = 0;
      for (uint32_t c = 0; c < kCols; ++c)
        sum += double(weight[(i % kHeads * kRows + row) * kCols + c]) * double(from[c]);
      wanted.push_back(float(sum));
    }
  }
  EXPECT_LT(distance(out.download<float>(), wanted), 2e-7);
}

TEST_F(Exact, ProjectsToTheCpusExperts) {
  compare_experts(true);
  compare_experts(false);
}

TEST_F(Exact, AttendsAsInDoublePrecision) {
  for (const KvFormat format : kKvFormats) {
    for (const uint32_t window : {0u, 70u, 1000u}) {
      const bool goes_on = window == 1000;
      const AttentionCase test = {.key_format = format,
                                  .value_format = format,
                                  .kv_heads = goes_on ? 1u : 2u,
                                  .key_dim = window == 70 ? 24u : 64u,
                                  .value_dim = goes_on        ? 512u
                                               : window == 70 ? 136u
                                                              : 64u,
                                  .key_goes_on = goes_on,
                                  .window = window,
                                  .soft_cap = window == 0 ? 0.0f : 10.0f,
                                  .has_sinks = window != 0,
                                  .lengths = {301, 5}};
      SCOPED_TRACE(std::string(name(format)) + ", window " + std::to_string(window));
      AttentionFixture fixture(test);
      fixture.upload();
      const std::vector<PlainRow> rows = fixture.some_rows(5);
      std::vector<float> query;
      std::vector<uint32_t> token_rows, token_tables;
      std::vector<float> wanted;
      for (const PlainRow& row : rows) {
        token_rows.push_back(row.row);
        token_tables.push_back(row.table);
        for (uint32_t head = 0; head < test.heads(); ++head) {
          const std::vector<float> numbers = fixture.query_row(row.token, head);
          query.insert(query.end(), numbers.begin(), numbers.end());
          const std::vector<double> values = fixture.exact(row.token, row.row, row.table, head);
          wanted.insert(wanted.end(), values.begin(), values.end());
        }
      }
      const DeviceBuffer device_query = DeviceBuffer::of(query), out(wanted.size() * sizeof(float));
      const DeviceBuffer device_token_rows = DeviceBuffer::of(token_rows),
                         device_tables = DeviceBuffer::of(token_tables);
      const AttentionParams attend = fixture.params();
      const Stream stream;
      CUDA_CHECK(cudaDeviceSynchronize());
      exact_attention({.query = device_rows(device_query, rows.size(), query.size() / rows.size()),
                       .heads = test.heads(),
                       .rows = attend.rows,
                       .key_format = format,
                       .value_format = format,
                       .page_ids = attend.page_ids,
                       .token_rows = device_token_rows.as<uint32_t>(),
                       .token_tables = device_tables.as<uint32_t>(),
                       .window = window,
                       .scale = fixture.scale(),
                       .soft_cap = test.soft_cap,
                       .sinks = attend.sinks,
                       .out = device_rows(out, rows.size(), fixture.out_width())},
                      stream.get());
      stream.wait();
      EXPECT_LT(distance(out.download<float>(), wanted), 1e-6);
    }
  }
}

}  // namespace
}  // namespace quire::cuda
