#include <cmath>
#include <cstring>

#include <gtest/gtest.h>

#include "backend/cuda/attention/attention_case.h"
#include "backend/cuda/attention/taps.h"
#include "backend/cuda/device_case.h"

namespace quire::cuda {
namespace {

using Taps = DeviceTest;

// Of the largest number.
double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double worst = 0, largest = 1e-30;
  for (size_t i = 0; i < b.size(); ++i) {
    worst = std::max(worst, std::abs(double(a[i]) - double(b[i])));
    largest = std::max(largest, std::abs(double(b[i])));
  }
  return worst / largest;
}

std::vector<float> tap_on_device(const AttentionFixture& fixture, const Tap& wanted, const PlainRow& row,
                                 const std::vector<float>& before) {
  const Stream stream;
  const DeviceBuffer values = DeviceBuffer::of(before), scratch(tap_scratch_bytes(wanted, row.row) + 4);
  CUDA_CHECK(cudaDeviceSynchronize());
  DeviceTap params = {.tap = wanted,
                      .row = row.row,
                      .table = row.table,
                      .values = values.as<float>(),
                      .scratch = scratch.as<float>()};
  params.tap.token = row.token;
  tap(fixture.params(), params, stream.get());
  stream.wait();
  return values.download<float>();
}

// Shares of f32 sums in another order than the CPU's, of scores as large as 20: 2^-20 of a score is lost.
void compare_taps(const AttentionCase& test) {
  CpuBackend cpu(exact_kernels(), 2);
  AttentionFixture fixture(test);
  fixture.upload();
  const std::vector<PlainRow> rows = fixture.some_rows(3);
  CpuStep step(fixture, rows);
  step.begin(cpu);
  for (uint32_t i = 0; i < rows.size(); ++i) {
    for (const Tap::What what : {Tap::What::shares, Tap::What::queries}) {
      for (const Tap::Join join : {Tap::Join::store, Tap::Join::sum, Tap::Join::most}) {
        const Tap wanted = {.what = what,
                            .join = join,
                            .layer = 0,
                            .token = i,
                            .first_head = 2,
                            .heads = 6,
                            .heads_per_row = 3,
                            .width = what == Tap::What::shares ? rows[i].row + 3 : test.query_dim(),
                            .at = 0};
        SCOPED_TRACE(std::string(name(test.key_format)) + ", row " + std::to_string(rows[i].row) + ", what " +
                     std::to_string(int(what)) + ", join " + std::to_string(int(join)));
        std::vector<float> before(wanted.rows() * wanted.width);
        Noise noise(i + 1);
        for (float& value : before) value = noise() * 0.01f;
        std::vector<float> values = before;
        cpu.tap(wanted, step.attend, values);
        EXPECT_LT(distance(tap_on_device(fixture, wanted, rows[i], before), values), 3e-5);
      }
    }
  }
}

TEST_F(Taps, SeeWhatTheCpuSees) {
  for (const KvFormat format : kKvFormats) {
    for (const uint32_t window : {0u, 90u}) {
      compare_taps({.key_format = format,
                    .value_format = format,
                    .key_dim = 64,
                    .value_dim = 64,
                    .window = window,
                    .soft_cap = window == 0 ? 0.0f : 30.0f,
                    .has_sinks = window != 0,
                    .lengths = {333, 40}});
    }
  }
}

TEST_F(Taps, SeeInLatentRowsWhatTheCpuSees) {
  for (const KvFormat format : kKvFormats) {
    compare_taps({.key_format = format == KvFormat::q4 ? KvFormat::f16 : format,
                  .value_format = format,
                  .kv_heads = 1,
                  .group = 9,
                  .key_dim = 64,
                  .value_dim = 512,
                  .key_goes_on = true,
                  .lengths = {133, 40}});
  }
}

TEST_F(Taps, StopAtTheWidthThatIsAskedFor) {
  AttentionFixture fixture({.key_dim = 64, .value_dim = 64, .lengths = {300}});
  fixture.upload();
  const PlainRow row = {250, 250, fixture.table(0)};
  const Tap whole = {.heads = 2, .width = 251}, part = {.heads = 2, .width = 100};
  const std::vector<float> all = tap_on_device(fixture, whole, row, std::vector<float>(2 * 251, 9.0f));
  const std::vector<float> some = tap_on_device(fixture, part, row, std::vector<float>(2 * 100, 9.0f));
  for (uint32_t j = 0; j < 200; ++j) EXPECT_EQ(some[j], all[j / 100 * 251 + j % 100]) << j;
}

// Sums of products of three numbers, in f32 and in another order than the CPU's.
TEST_F(Taps, ExpectTheCpusScores) {
  CpuBackend cpu(exact_kernels(), 2);
  constexpr uint32_t kSamples = 37, kRows = 150;
  for (const KvFormat format : kKvFormats) {
    for (const uint32_t dim : {64u, 136u, 96u}) {
      SCOPED_TRACE(std::string(name(format)) + ", heads of " + std::to_string(dim));
      const bool goes_on = dim == 96;
      const AttentionCase test = {.key_format = format,
                                  .value_format = format,
                                  .kv_heads = goes_on ? 1u : 2u,
                                  .key_dim = goes_on ? 32 : dim,
                                  .value_dim = goes_on ? 64 : dim,
                                  .key_goes_on = goes_on,
                                  .lengths = {160, 40}};
      AttentionFixture fixture(test);
      fixture.upload();
      std::vector<float> samples(kSamples * test.heads() * dim);
      Noise noise(21);
      for (float& value : samples) value = noise() + 0.3f;
      std::vector<float> scores(test.heads() * kRows), norms(test.kv_heads * kRows);
      const DeviceBuffer device_samples = DeviceBuffer::of(samples), device_scores = DeviceBuffer::of(scores);
      const DeviceBuffer device_norms = DeviceBuffer::of(norms), moments(moments_bytes(test.heads(), dim));
      const std::vector<PlainRow> rows = {{0, 159, fixture.table(0)}};
      CpuStep step(fixture, rows);
      step.begin(cpu);
      const size_t width = test.heads() * dim;
      cpu.expected_scores({.samples = {samples.data(), kSamples, width, width},
                           .heads = test.heads(),
                           .kv = step.attend.kv,
                           .scale = fixture.scale(),
                           .run = 0,
                           .rows = kRows,
                           .scores = {scores.data(), test.heads(), kRows, kRows},
                           .value_norms = {norms.data(), test.kv_heads, kRows, kRows}});
      const AttentionParams attend = fixture.params();
      const Stream stream;
      CUDA_CHECK(cudaDeviceSynchronize());
      expected_scores({.samples = {device_samples.as<float>(), kSamples, width, width},
                       .heads = test.heads(),
                       .rows = attend.rows,
                       .key_format = format,
                       .value_format = format,
                       .page_ids = attend.page_ids + fixture.table(0),
                       .row_count = kRows,
                       .scale = fixture.scale(),
                       .scores = {device_scores.as<float>(), test.heads(), kRows, kRows},
                       .value_norms = {device_norms.as<float>(), test.kv_heads, kRows, kRows},
                       .moments = moments.as<float>()},
                      stream.get());
      stream.wait();
      EXPECT_LT(distance(device_scores.download<float>(), scores), 1e-5);
      EXPECT_LT(distance(device_norms.download<float>(), norms), 1e-6);
    }
  }
}

}  // namespace
}  // namespace quire::cuda
