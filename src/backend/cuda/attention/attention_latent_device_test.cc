#include "backend/cuda/attention/attention_checks.h"

namespace quire::cuda {
namespace {

// Rows of which all heads score both parts, and whose values are the second.
class LatentAttention : public Attention {};

AttentionCase latent(uint32_t group, KvFormat keys, KvFormat values, std::vector<uint32_t> lengths) {
  return {.key_format = keys,
          .value_format = values,
          .kv_heads = 1,
          .group = group,
          .key_dim = 64,
          .value_dim = 512,
          .key_goes_on = true,
          .lengths = std::move(lengths)};
}

AttentionCase small_latent(KvFormat keys, KvFormat values) {
  return {.key_format = keys,
          .value_format = values,
          .kv_heads = 1,
          .group = 5,
          .key_dim = 8,
          .value_dim = 24,
          .key_goes_on = true,
          .page_tokens = 16,
          .query_size = 4,
          .lengths = {530, 40}};
}

void expect_plain_bits(const AttentionCase& test, uint32_t rows_of_each) {
  SCOPED_TRACE(describe(test));
  AttentionFixture fixture(test);
  fixture.upload();
  const std::vector<PlainRow> rows = fixture.some_rows(rows_of_each);
  const std::vector<float> plain = fixture.compute_plainly(rows);
  const std::vector<float> tiles =
      fixture.compute_generally(plan_tiles(fixture.runs_of(uint32_t(1) << 30), test.shape()));
  EXPECT_EQ(differing(tiles, plain, rows, fixture.out_width()), 0u) << "tiles";
  const std::vector<float> units = fixture.compute_generally(
      plan_attention(AttentionFixture::runs_of(rows), test.shape(), Merging::apart));
  EXPECT_EQ(differing(units, plain, rows, fixture.out_width()), 0u) << "units";
}

// The smallest, for tools that watch every access.
TEST_F(LatentAttention, HasTheBitsOfThePlainKernelInAFewKeys) {
  expect_plain_bits(latent(20, KvFormat::bf16, KvFormat::bf16, {150}), 3);
  expect_plain_bits(latent(2, KvFormat::int8, KvFormat::q4, {140}), 3);
}

TEST_F(LatentAttention, HasTheBitsOfThePlainKernelForAnyNumberOfHeads) {
  for (const uint32_t group : {1u, 3u, 16u, 20u, 32u, 64u})
    expect_plain_bits(latent(group, KvFormat::bf16, KvFormat::bf16, {1130, 3}), 8);
  expect_plain_bits(latent(128, KvFormat::bf16, KvFormat::bf16, {700}), 8);
}

TEST_F(LatentAttention, HasTheBitsOfThePlainKernelInEveryPairOfFormats) {
  for (const KvFormat keys : kKvFormats) {
    for (const KvFormat values : kKvFormats) expect_plain_bits(small_latent(keys, values), 8);
  }
  for (const KvFormat format : kKvFormats) expect_plain_bits(latent(20, format, format, {600}), 6);
  expect_plain_bits(latent(16, KvFormat::f16, KvFormat::q4, {600}), 6);
}

TEST_F(LatentAttention, KnowsCapsSinksAndWidePages) {
  AttentionCase test = latent(20, KvFormat::bf16, KvFormat::bf16, {600});
  test.soft_cap = 30;
  test.has_sinks = true;
  test.page_tokens = 48;
  expect_plain_bits(test, 6);
  test.group = 16;
  test.query_size = 12;
  expect_plain_bits(test, 6);
}

TEST_F(LatentAttention, HasTheSameBitsInChunksOfEverySize) {
  for (const AttentionCase& test :
       {latent(16, KvFormat::bf16, KvFormat::bf16, {1300, 40}),
        latent(64, KvFormat::f16, KvFormat::q4, {700}), latent(128, KvFormat::bf16, KvFormat::int8, {540})}) {
    SCOPED_TRACE(describe(test));
    AttentionFixture fixture(test);
    fixture.upload();
    const std::vector<float> whole =
        fixture.compute_generally(plan_tiles(fixture.runs_of(uint32_t(1) << 30), test.shape()));
    for (const uint32_t chunk : {500u, 64u, 5u, 3u, 1u}) {
      const AttentionPlan plan = plan_attention(fixture.runs_of(chunk), test.shape(), Merging::apart);
      const std::vector<float> out = fixture.compute_generally(plan);
      EXPECT_EQ(differing(out, whole), 0u) << "chunks of " << chunk << places(out, whole, fixture);
    }
  }
}

// Few tiles behind a long context are divided by its splits.
TEST_F(LatentAttention, HasTheSameBitsInPartsOfTiles) {
  const AttentionCase test = latent(32, KvFormat::bf16, KvFormat::bf16, {2200});
  AttentionFixture fixture(test);
  fixture.upload();
  const std::vector<float> whole =
      fixture.compute_generally(plan_tiles(fixture.runs_of(uint32_t(1) << 30), test.shape()));
  const AttentionRun run{2200 - 30, 30, 2200 - 30, fixture.table(0)};
  const AttentionPlan plan = plan_attention({&run, 1}, test.shape(), Merging::apart);
  ASSERT_TRUE(plan.tiles.empty() && plan.few.units.empty());
  std::vector<PlainRow> rows;
  for (uint32_t row = run.row; row < 2200; ++row) rows.push_back({row, row, fixture.table(0)});
  EXPECT_EQ(differing(fixture.compute_generally(plan), whole, rows, fixture.out_width()), 0u);
}

// Within the rounding of shares; of f32 rows, of keys too.
TEST_F(LatentAttention, IsSoftmaxInDoublePrecision) {
  for (const KvFormat format : kKvFormats) {
    const AttentionCase test = latent(16, format, format, {700});
    SCOPED_TRACE(describe(test));
    AttentionFixture fixture(test);
    fixture.upload();
    const std::vector<float> out =
        fixture.compute_generally(plan_tiles(fixture.runs_of(uint32_t(1) << 30), test.shape()));
    double error = 0, size = 0;
    for (const PlainRow& row : fixture.some_rows(5)) {
      for (const uint32_t head : {0u, 7u, 15u}) {
        const std::vector<double> wanted = fixture.exact(row.token, row.row, row.table, head);
        const float* got = &out[(size_t(row.token) * test.heads() + head) * test.value_dim];
        for (size_t d = 0; d < wanted.size(); ++d) {
          error += (double(got[d]) - wanted[d]) * (double(got[d]) - wanted[d]);
          size += wanted[d] * wanted[d];
        }
      }
    }
    EXPECT_LT(std::sqrt(error / size), format == KvFormat::f32 ? 1e-2 : 5e-3);
  }
}

}  // namespace
}  // namespace quire::cuda
