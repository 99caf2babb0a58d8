#include "backend/cuda/attention/attention_checks.h"

namespace quire::cuda {
namespace {

class GeneralAttention : public Attention {};

// The general kernel in tiles and in units has the bits of the plain one.
void expect_general_bits(AttentionFixture& fixture, const std::vector<PlainRow>& rows) {
  const AttentionShape shape = fixture.test().shape();
  const std::vector<float> plain = fixture.compute_plainly(rows);
  const std::vector<float> tiles =
      fixture.compute_generally(plan_tiles(fixture.runs_of(uint32_t(1) << 30), shape));
  EXPECT_EQ(differing(tiles, plain, rows, fixture.out_width()), 0u) << "tiles";
  const std::vector<float> units =
      fixture.compute_generally(plan_attention(AttentionFixture::runs_of(rows), shape, Merging::apart));
  EXPECT_EQ(differing(units, plain, rows, fixture.out_width()), 0u) << "units";
}

TEST_F(GeneralAttention, HasTheSameBitsInChunksOfEverySize) {
  for (const AttentionCase& test :
       {AttentionCase{.key_dim = 256, .value_dim = 256, .window = 600, .lengths = {1700, 40}},
        AttentionCase{.kv_heads = 1, .group = 8, .key_dim = 512, .value_dim = 512, .lengths = {1200, 3}},
        AttentionCase{.key_format = KvFormat::f32,
        .value_format = KvFormat::q4,
        .group = 3,
        .has_sinks = true,
        .lengths = {1200}},
        AttentionCase{.key_format = KvFormat::int8,
        .value_format = KvFormat::fp8,
        .group = 16,
        .key_dim = 96,
        .value_dim = 80,
        .page_tokens = 48,
        .soft_cap = 30,
        .lengths = {1200}}}) {
    SCOPED_TRACE(describe(test));
    AttentionFixture fixture(test);
    fixture.upload();
    const std::vector<float> whole =
        fixture.compute_generally(plan_tiles(fixture.runs_of(uint32_t(1) << 30), test.shape()));
    for (const uint32_t chunk : {500u, 64u, 5u, 1u}) {
      const AttentionPlan plan = plan_attention(fixture.runs_of(chunk), test.shape(), Merging::apart);
      const std::vector<float> out = fixture.compute_generally(plan);
      EXPECT_EQ(differing(out, whole), 0u) << "chunks of " << chunk << places(out, whole, fixture);
    }
  }
}

TEST_F(GeneralAttention, HasTheBitsOfThePlainKernel) {
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
  cases.push_back({.kv_heads = 1, .group = 16, .key_dim = 512, .value_dim = 512, .lengths = {1100}});
  cases.push_back({.key_dim = 16, .value_dim = 32, .page_tokens = 4, .has_sinks = true, .lengths = {600, 3}});
  for (const AttentionCase& test : cases) {
    SCOPED_TRACE(describe(test));
    AttentionFixture fixture(test);
    fixture.upload();
    const std::vector<PlainRow> rows = fixture.some_rows(16);
    expect_general_bits(fixture, rows);
  }
}

TEST_F(GeneralAttention, HasTheSameBitsInEveryPairOfFormats) {
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
      expect_general_bits(fixture, rows);
    }
  }
}

TEST_F(GeneralAttention, HasTheSameBitsInHeadsOfEveryMultipleOfEight) {
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
      expect_general_bits(fixture, rows);
    }
  }
}

}  // namespace
}  // namespace quire::cuda
