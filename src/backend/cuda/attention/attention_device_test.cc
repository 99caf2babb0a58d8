#include <cmath>
#include <cstring>

#include <gtest/gtest.h>

#include "backend/cuda/attention/attention_checks.h"
#include "backend/cuda/attention/attention_plain.h"

namespace quire::cuda {
namespace {

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

// Fewer tiles than multiprocessors are divided by the splits of their context.
TEST_F(Attention, HasTheSameBitsInPartsOfTiles) {
  for (const AttentionCase& test :
       {AttentionCase{.lengths = {4133}},
        AttentionCase{.key_format = KvFormat::int8,
        .value_format = KvFormat::q4,
        .group = 3,
        .key_dim = 64,
        .value_dim = 64,
        .has_sinks = true,
        .lengths = {4133}},
        AttentionCase{.kv_heads = 1, .group = 16, .window = 2500, .query_size = 8, .lengths = {4133}}}) {
    SCOPED_TRACE(describe(test));
    AttentionFixture fixture(test);
    fixture.upload();
    const std::vector<float> whole =
        fixture.compute(plan_tiles(fixture.runs_of(uint32_t(1) << 30), test.shape()));
    for (const uint32_t tokens : {70u, 100u, 129u}) {
      const AttentionRun run{4133 - tokens, tokens, 4133 - tokens, fixture.table(0)};
      const AttentionPlan plan = plan_attention({&run, 1}, test.shape());
      ASSERT_TRUE(plan.tiles.empty() && plan.few.units.empty());
      std::vector<PlainRow> rows;
      for (uint32_t row = run.row; row < 4133; ++row) rows.push_back({row, row, fixture.table(0)});
      EXPECT_EQ(differing(fixture.compute(plan), whole, rows, fixture.out_width()), 0u) << tokens;
    }
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
                                    AttentionCase{.key_dim = 64, .value_dim = 64, .lengths = {300, 3}},
                                    AttentionCase{.key_dim = 256, .value_dim = 256, .lengths = {300, 3}}}) {
    SCOPED_TRACE(describe(test));
    AttentionFixture fixture(test);
    fixture.upload();
    const uint32_t width = uint32_t(fixture.out_width());
    const DeviceBuffer activations(activation_bytes(fixture.tokens(), width));
    const AttentionPlan plan = plan_attention(fixture.runs_of(uint32_t(200)), test.shape(), Merging::apart);
    ASSERT_FALSE(plan.tiles.empty() || plan.few.units.empty());
    for (const bool fast : {true, false}) {
      if (fast && !has_fast_attention(fixture.params())) continue;
      const std::vector<float> out = fast ? fixture.compute_to(plan, activations.as<uint8_t>())
                                          : fixture.compute_generally(plan, activations.as<uint8_t>());
      const std::vector<uint8_t> rounded = activations.download<uint8_t>();
      size_t wrong = 0;
      for (uint32_t token = 0; token < fixture.tokens(); ++token) {
        for (uint32_t i = 0; i < width; ++i) {
          uint16_t bits;
          std::memcpy(&bits, rounded.data() + activation_place(fixture.tokens(), token, i), sizeof(bits));
          wrong += bits != f32_to_bf16(out[size_t(token) * width + i]);
        }
      }
      EXPECT_EQ(wrong, 0u) << (fast ? "fast" : "general");
    }
  }
}

}  // namespace
}  // namespace quire::cuda
