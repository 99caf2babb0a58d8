#include <cmath>
#include <cstring>

#include <gtest/gtest.h>

#include "backend/cuda/attention/attention_case.h"
#include "backend/cuda/attention/attention_plain.h"
#include "backend/cuda/device_case.h"

namespace quire::cuda {
namespace {

class Attention : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (!IsSkipped() && compute_capability() != 90) GTEST_SKIP() << "this GPU is not of Hopper's kind";
  }
};

// How many of some tokens' numbers differ, by their bits.
size_t differing(const std::vector<float>& a, const std::vector<float>& b, const std::vector<PlainRow>& rows,
                 size_t width) {
  size_t count = 0;
  for (const PlainRow& row : rows) {
    for (size_t i = row.token * width; i < (row.token + 1) * width; ++i)
      count += std::memcmp(&a[i], &b[i], sizeof(float)) != 0;
  }
  return count;
}

size_t differing(const std::vector<float>& a, const std::vector<float>& b) {
  size_t count = 0;
  for (size_t i = 0; i < a.size(); ++i) count += std::memcmp(&a[i], &b[i], sizeof(float)) != 0;
  return count;
}

// Where they differ, for a person.
std::string places(const std::vector<float>& a, const std::vector<float>& b,
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

std::vector<AttentionCase> fast_cases() {
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

std::string describe(const AttentionCase& test) {
  return std::string(name(test.key_format)) + " and " + std::string(name(test.value_format)) + ", heads " +
         std::to_string(test.kv_heads) + " x " + std::to_string(test.group) + " of " +
         std::to_string(test.key_dim) + ", pages of " + std::to_string(test.page_tokens) + ", window " +
         std::to_string(test.window) + ", cap " + std::to_string(test.soft_cap) +
         (test.has_sinks ? ", sinks" : "");
}

TEST_F(Attention, HasTheSameBitsInTilesInUnitsAndPlainly) {
  for (const AttentionCase& test : fast_cases()) {
    SCOPED_TRACE(describe(test));
    AttentionFixture fixture(test);
    fixture.upload();
    const std::vector<PlainRow> rows = fixture.some_rows(24);
    const std::vector<float> plain = fixture.compute_plainly(rows);
    const std::vector<float> tiles =
        fixture.compute(plan_tiles(fixture.runs_of(uint32_t(1) << 30), test.shape()));
    const std::vector<float> units =
        fixture.compute(plan_attention(AttentionFixture::runs_of(rows), test.shape()));
    EXPECT_EQ(differing(tiles, plain, rows, fixture.out_width()), 0u) << "tiles";
    EXPECT_EQ(differing(units, plain, rows, fixture.out_width()), 0u) << "units";
  }
}

TEST_F(Attention, HasTheSameBitsInChunksOfEverySize) {
  for (AttentionCase test :
       {AttentionCase{}, AttentionCase{.key_dim = 64, .value_dim = 64, .window = 700},
        AttentionCase{
            .key_format = KvFormat::f16, .value_format = KvFormat::f16, .group = 3, .query_size = 8}}) {
    SCOPED_TRACE(describe(test));
    AttentionFixture fixture(test);
    fixture.upload();
    const std::vector<float> whole =
        fixture.compute(plan_tiles(fixture.runs_of(uint32_t(1) << 30), test.shape()));
    for (const uint32_t chunk : {1000u, 333u, 64u, 16u, 5u, 1u}) {
      const AttentionPlan plan = plan_attention(fixture.runs_of(chunk), test.shape());
      const std::vector<float> out = fixture.compute(plan);
      EXPECT_EQ(differing(out, whole), 0u) << "chunks of " << chunk << places(out, whole, fixture);
    }
  }
}

TEST_F(Attention, IsTheSameBitsByTheGeneralKernel) {
  std::vector<AttentionCase> cases = fast_cases();
  cases.resize(7);
  cases.push_back({.key_dim = 96, .value_dim = 96, .lengths = {1300, 7}});
  cases.push_back({.key_dim = 256, .value_dim = 256, .lengths = {700, 200}});
  cases.push_back({.key_format = KvFormat::f16,
                   .value_format = KvFormat::f16,
                   .kv_heads = 1,
                   .key_dim = 256,
                   .value_dim = 256,
                   .soft_cap = 50,
                   .lengths = {700}});
  cases.push_back({.key_dim = 192, .value_dim = 128, .window = 300, .lengths = {900}});
  cases.push_back({.key_dim = 16, .value_dim = 32, .page_tokens = 4, .has_sinks = true, .lengths = {600, 3}});
  for (const AttentionCase& test : cases) {
    SCOPED_TRACE(describe(test));
    AttentionFixture fixture(test);
    fixture.upload();
    const std::vector<PlainRow> rows = fixture.some_rows(16);
    const std::vector<float> general =
        fixture.compute_generally(plan_tiles(fixture.runs_of(uint32_t(1) << 30), test.shape()));
    EXPECT_EQ(differing(general, fixture.compute_plainly(rows), rows, fixture.out_width()), 0u);
  }
}

TEST_F(Attention, HasTheSameBitsInEveryPairOfFormatsByTheGeneralKernel) {
  for (const KvFormat keys : kKvFormats) {
    for (const KvFormat values : kKvFormats) {
      const AttentionCase test = {.key_format = keys,
                                  .value_format = values,
                                  .group = 3,
                                  .key_dim = 64,
                                  .value_dim = 64,
                                  .query_size = 4,
                                  .lengths = {530, 40}};
      SCOPED_TRACE(describe(test));
      AttentionFixture fixture(test);
      fixture.upload();
      const std::vector<PlainRow> rows = fixture.some_rows(8);
      const std::vector<float> general =
          fixture.compute_generally(plan_tiles(fixture.runs_of(uint32_t(1) << 30), test.shape()));
      EXPECT_EQ(differing(general, fixture.compute_plainly(rows), rows, fixture.out_width()), 0u);
    }
  }
}

TEST_F(Attention, HasTheSameBitsInHeadsOfEveryMultipleOfEight) {
  for (const KvFormat format : kKvFormats) {
    for (const uint32_t dim : {8u, 24u, 40u, 80u, 96u, 136u, 256u, 320u, 512u}) {
      const AttentionCase test = {.key_format = format,
                                  .value_format = format,
                                  .key_dim = dim,
                                  .value_dim = dim == 40    ? 88
                                               : dim == 320 ? 136
                                                            : dim,
                                  .window = dim == 80 ? 100u : 0u,
                                  .soft_cap = dim == 96 ? 20.0f : 0.0f,
                                  .has_sinks = dim == 24,
                                  .lengths = {300, 33}};
      SCOPED_TRACE(describe(test));
      AttentionFixture fixture(test);
      fixture.upload();
      const std::vector<PlainRow> rows = fixture.some_rows(8);
      const std::vector<float> general =
          fixture.compute_generally(plan_tiles(fixture.runs_of(uint32_t(1) << 30), test.shape()));
      EXPECT_EQ(differing(general, fixture.compute_plainly(rows), rows, fixture.out_width()), 0u);
    }
  }
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double error = 0, size = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    error += (double(a[i]) - double(b[i])) * (double(a[i]) - double(b[i]));
    size += double(b[i]) * double(b[i]);
  }
  return std::sqrt(error / size);
}

// Both round shares; the CPU rounds queries to eight bits where keys are q4 (attend.h), and shares where values are.
TEST_F(Attention, AgreesWithTheCpuInEveryFormat) {
  CpuBackend cpu(exact_kernels(), 2);
  for (const KvFormat keys : kKvFormats) {
    for (const KvFormat values : {keys, KvFormat::q4, KvFormat::bf16}) {
      const AttentionCase test = {.key_format = keys, .value_format = values, .lengths = {700, 90}};
      SCOPED_TRACE(describe(test));
      AttentionFixture fixture(test);
      fixture.upload();
      const std::vector<PlainRow> rows = fixture.some_rows(8);
      const std::vector<float> all =
          fixture.compute_generally(plan_tiles(fixture.runs_of(uint32_t(1) << 30), test.shape()));
      std::vector<float> device;
      for (const PlainRow& row : rows) {
        const auto begin = all.begin() + ptrdiff_t(row.token * fixture.out_width());
        device.insert(device.end(), begin, begin + ptrdiff_t(fixture.out_width()));
      }
      const bool codes = numbers_of(keys) == HalfKind::f16 || numbers_of(values) == HalfKind::f16;
      EXPECT_LT(distance(device, CpuStep(fixture, rows).compute(cpu)), codes ? 3e-2 : 4e-3);
    }
  }
}

// f32 alone is left to the general kernel.
TEST_F(Attention, HasTheSameBitsInEveryPairOfFormatsByTheFastKernels) {
  for (const KvFormat keys : kKvFormats) {
    for (const KvFormat values : kKvFormats) {
      for (const uint32_t dim : {64u, 128u}) {
        const AttentionCase test = {.key_format = keys,
                                    .value_format = values,
                                    .key_dim = dim,
                                    .value_dim = dim,
                                    .query_size = 4,
                                    .lengths = {1100, 40}};
        SCOPED_TRACE(describe(test));
        AttentionFixture fixture(test);
        fixture.upload();
        const bool fast = keys != KvFormat::f32 && values != KvFormat::f32;
        ASSERT_EQ(has_fast_attention(fixture.params()), fast);
        if (!fast) continue;
        const std::vector<PlainRow> rows = fixture.some_rows(8);
        const std::vector<float> plain = fixture.compute_plainly(rows);
        const std::vector<float> units =
            fixture.compute(plan_attention(AttentionFixture::runs_of(rows), test.shape()));
        EXPECT_EQ(differing(units, plain, rows, fixture.out_width()), 0u) << "units";
        const std::vector<float> tiles =
            fixture.compute(plan_tiles(fixture.runs_of(uint32_t(1) << 30), test.shape()));
        EXPECT_EQ(differing(tiles, plain, rows, fixture.out_width()), 0u) << "tiles";
      }
    }
  }
}

TEST_F(Attention, ReadsNoPageThatAWindowHasLeftBehind) {
  for (const KvFormat format : kKvFormats) {
    const AttentionCase test = {
        .key_format = format, .value_format = format, .window = 200, .lengths = {1500}};
    SCOPED_TRACE(describe(test));
    AttentionFixture fixture(test);
    const std::vector<PlainRow> last = {{1450, 1450, fixture.table(0)}, {1499, 1499, fixture.table(0)}};
    const std::vector<AttentionRun> run = {{1450, 50, 1450, fixture.table(0)}};
    fixture.free_pages(0, (1450 + 1 - 200) / test.page_tokens);
    fixture.upload();
    const std::vector<float> plain = fixture.compute_plainly(last);
    EXPECT_EQ(
        differing(fixture.compute_generally(plan_tiles(run, test.shape())), plain, last, fixture.out_width()),
        0u);
    if (!has_fast_attention(fixture.params())) continue;
    EXPECT_EQ(differing(fixture.compute(plan_tiles(run, test.shape())), plain, last, fixture.out_width()),
              0u);
    const AttentionPlan units = plan_attention(AttentionFixture::runs_of(last), test.shape());
    ASSERT_TRUE(units.tiles.empty());
    EXPECT_EQ(differing(fixture.compute(units), plain, last, fixture.out_width()), 0u);
  }
}

TEST_F(Attention, HasTheSameBitsOverCodesInUglyShapes) {
  for (const KvFormat format : {KvFormat::int8, KvFormat::fp8, KvFormat::q4}) {
    for (AttentionCase test :
         {AttentionCase{.group = 1, .page_tokens = 16, .lengths = {700, 1}},
          AttentionCase{.group = 16, .page_tokens = 48, .window = 100, .lengths = {900, 33}},
          AttentionCase{.group = 3, .page_tokens = 128, .soft_cap = 20, .has_sinks = true, .lengths = {1300}},
          AttentionCase{.group = 12,
          .key_dim = 64,
          .value_dim = 64,
          .window = 513,
          .query_size = 12,
          .lengths = {1700}}}) {
      test.key_format = test.value_format = format;
      SCOPED_TRACE(describe(test));
      AttentionFixture fixture(test);
      fixture.upload();
      const std::vector<PlainRow> rows = fixture.some_rows(12);
      const std::vector<float> plain = fixture.compute_plainly(rows);
      const std::vector<float> whole =
          fixture.compute(plan_tiles(fixture.runs_of(uint32_t(1) << 30), test.shape()));
      EXPECT_EQ(differing(whole, plain, rows, fixture.out_width()), 0u);
      for (const uint32_t chunk : {200u, 5u, 1u})
        EXPECT_EQ(differing(fixture.compute(plan_attention(fixture.runs_of(chunk), test.shape())), whole), 0u)
            << "chunks of " << chunk;
    }
  }
}

// Shares are rounded to the format of the values: 2^-9 of each in bf16, 2^-12 in f16, in random directions.
TEST_F(Attention, IsWithinTheRoundingOfSharesOfTheExactOne) {
  for (const AttentionCase& test : fast_cases()) {
    SCOPED_TRACE(describe(test));
    AttentionFixture fixture(test);
    fixture.upload();
    const std::vector<PlainRow> rows = fixture.some_rows(6);
    const std::vector<float> out =
        fixture.compute(plan_attention(AttentionFixture::runs_of(rows), test.shape()));
    double error = 0, size = 0;
    for (const PlainRow& row : rows) {
      const uint32_t head = row.token % test.heads();
      const std::vector<double> exact = fixture.exact(row.token, row.row, row.table, head);
      for (uint32_t d = 0; d < test.value_dim; ++d) {
        const double difference =
            double(out[row.token * fixture.out_width() + head * test.value_dim + d]) - exact[d];
        error += difference * difference;
        size += exact[d] * exact[d];
      }
    }
    const double bound = numbers_of(test.value_format) == HalfKind::bf16 ? 2e-3 : 3e-4;
    EXPECT_LT(std::sqrt(error / size), bound);
  }
}

// The CPU's twin follows the same order; only 2^x is rounded differently, unless it is the polynomial.
TEST_F(Attention, IsWhatTheTwinOnTheCpuComputes) {
  for (const AttentionCase& test :
       {AttentionCase{.kv_heads = 1, .group = 2, .has_sinks = true, .lengths = {1400}},
        AttentionCase{.key_format = KvFormat::f16,
        .value_format = KvFormat::f16,
        .kv_heads = 1,
        .group = 1,
        .key_dim = 64,
        .value_dim = 64,
        .window = 600,
        .soft_cap = 30,
        .lengths = {1400}}}) {
    SCOPED_TRACE(describe(test));
    AttentionFixture fixture(test);
    fixture.upload();
    const std::vector<PlainRow> rows = fixture.some_rows(6);
    const std::vector<float> out = fixture.compute_plainly(rows);
    double error = 0, size = 0;
    size_t differ = 0;
    for (const PlainRow& row : rows) {
      std::vector<float> twin(test.value_dim);
      PlainScratch scratch;
      const PlainAttention attention = {.query = fixture.host_query(row.token, 0),
                                        .rows = fixture.host_rows(),
                                        .key_format = test.key_format,
                                        .value_format = test.value_format,
                                        .page_ids = fixture.host_table(0),
                                        .kv_head = 0,
                                        .row = row.row,
                                        .window = test.window,
                                        .scale = score_scale(fixture.scale(), test.soft_cap),
                                        .sink = fixture.host_sink(0),
                                        .out = twin.data()};
      attend_plainly(attention, scratch);
      for (uint32_t d = 0; d < test.value_dim; ++d) {
        const float value = out[row.token * fixture.out_width() + d];
        differ += value != twin[d];
        error += double(value - twin[d]) * double(value - twin[d]);
        size += double(twin[d]) * double(twin[d]);
      }
    }
#if defined(QUIRE_EXP2_POLYNOMIAL)
    EXPECT_EQ(differ, 0u);
#endif
    EXPECT_LT(std::sqrt(error / size), 2e-3) << differ << " numbers differ";
  }
}

TEST_F(Attention, RoundsItsResultIntoTheOrderOfActivations) {
  for (const AttentionCase& test : {AttentionCase{.lengths = {300, 3}},
                                    AttentionCase{.key_dim = 64, .value_dim = 64, .lengths = {300, 3}}}) {
    SCOPED_TRACE(describe(test));
    AttentionFixture fixture(test);
    fixture.upload();
    const uint32_t width = uint32_t(fixture.out_width());
    const DeviceBuffer activations(activation_bytes(fixture.tokens(), width));
    const AttentionPlan plan = plan_attention(fixture.runs_of(uint32_t(200)), test.shape());
    ASSERT_FALSE(plan.tiles.empty() || plan.units.empty());
    const std::vector<float> out = fixture.compute_to(plan, activations.as<uint8_t>());
    const std::vector<uint8_t> rounded = activations.download<uint8_t>();
    size_t wrong = 0;
    for (uint32_t token = 0; token < fixture.tokens(); ++token) {
      for (uint32_t i = 0; i < width; ++i) {
        uint16_t bits;
        std::memcpy(&bits, rounded.data() + activation_place(fixture.tokens(), token, i), sizeof(bits));
        wrong += bits != f32_to_bf16(out[size_t(token) * width + i]);
      }
    }
    EXPECT_EQ(wrong, 0u);
  }
}

}  // namespace
}  // namespace quire::cuda
