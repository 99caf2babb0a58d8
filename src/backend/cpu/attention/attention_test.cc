#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "backend/cpu/amx/plain_attend_tiles.h"
#include "backend/cpu/attention/attend_pages.h"
#include "backend/cpu/attention/attention_cases.h"
#include "backend/cpu/kernel_choice.h"

namespace quire {
namespace {

using Case = AttentionCase;

// Sixteen lanes on any machine, so that the widest tiles are tested where there is no AVX-512.
struct SixteenLanes {
  using Fetch = NearFetch;
  static constexpr size_t kLanes = 16, kScoreRows = 4, kValueVectors = 4, kValueQueries = 6, kQuadLanes = 16;
  static constexpr bool kReadsKeys = false, kRoundsToBf16 = true;
  static constexpr float kFp8Factor = 0x1p-60f;
  using Quad = const float*;
  using Bf16 = NoBf16;
  using Codes = PlainCodes;
  using Nibbles = PlainNibbles;

  template <KvFormat format>
  static Floats<16> load(const std::byte* bytes) {
    if constexpr (format == KvFormat::f32) return load_lanes<Floats<16>>(bytes);
    Floats<16> out;
    if constexpr (format == KvFormat::fp8) {
      for (size_t i = 0; i < 16; ++i) out[i] = e4m3(uint8_t(bytes[i]));
      return out;
    }
    for (size_t i = 0; i < 16; ++i) {
      const uint16_t half = load_lanes<uint16_t>(bytes + 2 * i);
      out[i] = format == KvFormat::f16 ? f16_to_f32(half) : bf16_to_f32(half);
    }
    return out;
  }
  template <KvFormat format>
  static Quad quad(const std::byte* bytes) {
    return reinterpret_cast<const float*>(bytes);
  }
  template <int i, class Lanes>
  static Lanes add_product(Lanes sum, Lanes a, Quad b) {
    return multiply_add(a, Lanes{} + b[i], sum);
  }
  static Floats<16> repeat_quad(const float* values) {
    Floats<16> out;
    for (size_t i = 0; i < 16; ++i) out[i] = values[i % 4];
    return out;
  }
  static Floats<16> join_quads(const Floats<16> (&rows)[4]) {
    Floats<16> out;
    for (size_t r = 0; r < 4; ++r) {
      for (size_t q = 0; q < 4; ++q) {
        out[4 * r + q] = (rows[r][4 * q] + rows[r][4 * q + 1]) + (rows[r][4 * q + 2] + rows[r][4 * q + 3]);
      }
    }
    return out;
  }
  template <class Lanes>
  static Lanes multiply_add(Lanes a, Lanes b, Lanes c) {
    for (size_t i = 0; i < sizeof(Lanes) / sizeof(float); ++i) c[i] = std::fma(a[i], b[i], c[i]);
    return c;
  }
  template <class Lanes>
  static Lanes larger(Lanes a, Lanes b) {
    return a > b ? a : b;
  }
};

// Tiles as AMX has them.
struct PlainTiles : SixteenLanes {
  using Bf16 = TileBf16<PlainAttendTiles>;
};

// Kernel sets with an attention of their own.
std::vector<CpuKernels> fast_kernels() {
  std::vector<CpuKernels> sets;
  for (const CpuKernels& kernels : present_kernels()) {
    if (sets.empty() || sets.back().attend != kernels.attend) sets.push_back(kernels);
  }
  return sets;
}

std::vector<CpuKernels> attention_kernels() {
  std::vector<CpuKernels> sets = fast_kernels();
  sets.push_back(scalar_kernels());
  sets.back().name = "sixteen lanes";
  sets.back().attend = [](const AttendArgs& args) { PagesAttention<SixteenLanes>(args).run(); };
  sets.push_back(sets.back());
  sets.back().name = "plain tiles";
  sets.back().attend = [](const AttendArgs& args) { PagesAttention<PlainTiles>(args).run(); };
  return sets;
}

// Sets that multiply bf16 by instructions with an order of their own.
bool multiplies_bf16(const CpuKernels& kernels) {
  const std::string_view name = kernels.name;
  return name == "plain tiles" || name == "amx_grouped" || name == "i8mm";
}
bool has_bf16(const Case& test) {
  return test.shape.key_format == KvFormat::bf16 || test.shape.value_format == KvFormat::bf16;
}

CpuKernels twin() {
  CpuKernels kernels = scalar_kernels();
  kernels.attend = attend_scalar;
  return kernels;
}

TEST(Attention, IsTheSoftmaxOverAllThatATokenSees) {
  for (const Case& test : kCases) {
    for (uint32_t tokens : {1u, 31u, 32u, 33u, 150u}) {
      Attention attention(test, tokens);
      const std::vector<double> expected = attention.expected(tokens);
      for (const CpuKernels& kernels : attention_kernels()) {
        const std::vector<float> out = attention.compute(kernels, tokens, tokens, 2);
        for (size_t i = 0; i < out.size(); ++i)
          ASSERT_NEAR(out[i], expected[i], tolerance(test))
              << kernels.name << " " << test.heads << " " << tokens << " " << i;
      }
    }
  }
}

// Whether sums are those of the twin to the last bit.
bool adds_like_the_twin(const CpuKernels& kernels, const Case& test) {
#if !defined(__aarch64__)
  if (kernels.attend == attend_baseline) return false;  // without fused multiply-adds
#endif
  return !(multiplies_bf16(kernels) && has_bf16(test));
}

TEST(Attention, IsTheScalarTwinBitByBitWhereMultiplyAddsAreFused) {
  for (const Case& test : kCases) {
    for (uint32_t tokens : {1u, 33u, 150u}) {
      Attention attention(test, tokens);
      const std::vector<float> expected = attention.compute(twin(), tokens, tokens, 1);
      for (const CpuKernels& kernels : attention_kernels()) {
        const std::vector<float> out = attention.compute(kernels, tokens, tokens, 1);
        const bool equal = adds_like_the_twin(kernels, test);
        for (size_t i = 0; i < out.size(); ++i) {
          if (equal) {
            ASSERT_EQ(out[i], expected[i]) << kernels.name << " " << test.heads << " " << tokens << " " << i;
          } else {
            ASSERT_NEAR(out[i], expected[i], 2 * tolerance(test)) << kernels.name;
          }
        }
      }
    }
  }
}

TEST(Attention, ToFp8IsTheScalarTwinAtAnyDimensionAndWithTheSmallestCodes) {
  for (const CpuKernels& kernels : attention_kernels()) {
    for (uint32_t dim : {2u, 6u, 16u, 18u, 20u, 30u, 32u, 44u, 64u, 80u, 100u, 128u}) {
      const Case test{{.kv_heads = 1,
                       .key_dim = dim,
                       .value_dim = dim,
                       .window = 0,
                       .key_format = KvFormat::fp8,
                       .value_format = KvFormat::fp8},
                      3};
      Attention attention(test, 37);
      attention.spread();
      const std::vector<double> exact = attention.expected(7);
      const std::vector<float> expected = attention.compute(twin(), 7, 7, 1);
      for (const uint32_t chunk : {1u, 7u}) {  // read from the page, or unpacked first
        const std::vector<float> out = attention.compute(kernels, 7, chunk, 1);
        for (size_t i = 0; i < out.size(); ++i) {
          ASSERT_NEAR(out[i], exact[i], 4e-6) << kernels.name << " " << dim;
#if !defined(__aarch64__)
          if (kernels.attend == attend_baseline) continue;
#endif
          ASSERT_EQ(out[i], expected[i]) << kernels.name << " " << dim << " " << chunk;
        }
      }
    }
  }
}

TEST(Attention, IsBitEqualForAnyChunksAndThreadsAcrossTheSegmentsOfALongContext) {
  for (const Case& test : kCases) {
    if (test.shape.key_goes_on && test.heads > 8) continue;  // with so many an emulator takes ten minutes
    Attention attention(test, 1100);
    const std::vector<double> expected = attention.expected(41);
    for (const CpuKernels& kernels : fast_kernels()) {
      const std::vector<float> whole = attention.compute(kernels, 41, 41, 1);
      for (size_t i = 0; i < whole.size(); ++i) ASSERT_NEAR(whole[i], expected[i], tolerance(test));
      for (const auto& [chunk, threads] :
           std::vector<std::pair<uint32_t, uint32_t>>{{1, 1}, {1, 9}, {2, 3}, {16, 1}, {17, 3}, {17, 9}}) {
        ASSERT_EQ(attention.compute(kernels, 41, chunk, threads), whole)
            << kernels.name << " " << chunk << " " << threads;
      }
    }
  }
}

TEST(Attention, ToBf16IsBitEqualForAnyChunksWhereItIsMultipliedAsItIs) {
  for (const CpuKernels& kernels : attention_kernels()) {
    if (!multiplies_bf16(kernels)) continue;
    for (const Case& test : kCases) {
      if (!has_bf16(test)) continue;
      Attention attention(test, 100);
      const std::vector<float> whole = attention.compute(kernels, 41, 41, 1);
      for (const uint32_t chunk : {1u, 2u, 3u, 17u})
        ASSERT_EQ(attention.compute(kernels, 41, chunk, 1), whole)
            << kernels.name << " " << test.heads << " " << chunk;
    }
  }
}

TEST(Attention, LosesFarLessByRoundingQueriesAndSharesThanTheCodesOfQ4HaveLost) {
  const Case test{{.kv_heads = 1,
                   .key_dim = 64,
                   .value_dim = 64,
                   .window = 0,
                   .key_format = KvFormat::q4,
                   .value_format = KvFormat::q4},
                  4};
  Attention attention(test, 300);
  const std::vector<double> exact = attention.expected_of_floats(40), stored = attention.expected(40);
  const std::vector<float> out = attention.compute(fast_kernels().back(), 40, 40, 1);
  double by_codes = 0, by_rounding = 0;
  for (size_t i = 0; i < out.size(); ++i) {
    by_codes += (stored[i] - exact[i]) * (stored[i] - exact[i]);
    by_rounding += (double(out[i]) - stored[i]) * (double(out[i]) - stored[i]);
  }
  EXPECT_LT(by_rounding, 0.03 * by_codes);
}

// Of one page of q4 values, 64 of a row, for one query whose scores are given; and in double precision.
struct OnePage {
  std::vector<float> out;
  std::vector<double> expected;
  double scale = 0;  // the largest of the codes
};
OnePage attend_one_page(const CpuKernels& kernels, std::span<const float> scores) {
  const uint32_t tokens = uint32_t(scores.size());
  const KvLayerShape shape{.kv_heads = 1,
                           .key_dim = 4,
                           .value_dim = 64,
                           .window = 0,
                           .key_format = KvFormat::f32,
                           .value_format = KvFormat::q4_plain};
  const size_t key_bytes = kv_row_bytes(KvFormat::f32, 4), row_bytes = kv_row_bytes(KvFormat::q4_plain, 64);
  std::vector<std::byte> page(tokens * (key_bytes + row_bytes));
  OnePage result{.out = std::vector<float>(kAttendLanes * 64), .expected = std::vector<double>(64)};
  std::mt19937 random(tokens);
  double total = 0;
  for (uint32_t t = 0; t < tokens; ++t) {
    const float key[4] = {scores[t], 0, 0, 0};
    store_kv_row(KvFormat::f32, key, page.data() + t * key_bytes);
    std::vector<float> row(64);
    for (float& value : row) value = float(int(random() % 2001) - 1000) / 500.0f;
    std::byte* at = page.data() + tokens * key_bytes + t * row_bytes;
    store_kv_row(KvFormat::q4_plain, row, at);
    load_kv_row(KvFormat::q4_plain, at, row);
    const double share = std::exp(double(scores[t]));
    total += share;
    for (size_t d = 0; d < 64; ++d) result.expected[d] += share * double(row[d]);
    for (size_t g = 0; g < 2; ++g) result.scale = std::max(result.scale, double(read_half(at + 32 + 4 * g)));
  }
  for (double& value : result.expected) value /= total;
  const float query[4] = {1, 0, 0, 0};
  const AttendQuery queries[] = {{query, 0, tokens}};
  const std::byte* pages[] = {page.data()};
  std::vector<float> max(kAttendLanes), sum(kAttendLanes), lanes(kAttendLanes * kAttendLanes);
  std::vector<float> key_rows(tokens * kAttendLanes), value_rows(tokens * 64);
  std::vector<float> room((tokens + 1) * kAttendLanes);
  kernels.attend({.shape = &shape,
                  .page_tokens = tokens,
                  .pages = pages,
                  .begin_page = 0,
                  .end_page = 1,
                  .fetch_end_page = 1,
                  .queries = queries,
                  .count = 1,
                  .scale = 1,
                  .soft_cap = 0,
                  .max = max.data(),
                  .sum = sum.data(),
                  .values = result.out.data(),
                  .key_width = kAttendLanes,
                  .value_width = 64,
                  .query_lanes = lanes.data(),
                  .key_rows = key_rows.data(),
                  .value_rows = value_rows.data(),
                  .scores = room.data()});
  for (float& value : result.out) value /= sum[0];
  return result;
}

TEST(Attention, TakesTheMeanOfQ4RowsWhoseSharesAreAlike) {
  for (const CpuKernels& kernels : attention_kernels()) {
    const OnePage page = attend_one_page(kernels, std::vector<float>(32, 0.5f));
    // A weight is wrong by half a step at most, and a code at most 7.5 from the middle.
    const double most = 7.5 * page.scale * 0.5 / 127;
    for (size_t d = 0; d < 64; ++d) ASSERT_NEAR(page.out[d], page.expected[d], most) << kernels.name;
  }
}

TEST(Attention, IsNotPulledToTheLeastOfQ4RowsThatOneRowOutweighs) {
  for (const CpuKernels& kernels : attention_kernels()) {
    std::vector<float> scores(32, -6.0f);  // 1 / 403: less than half of a 127th
    scores[5] = 0;
    const OnePage page = attend_one_page(kernels, scores);
    double error = 0, lost = 0;
    for (size_t d = 0; d < 64; ++d) {
      error += double(page.out[d]) - page.expected[d];
      ASSERT_NEAR(page.out[d], page.expected[d], 31.0 / 403 * 7.5 * page.scale) << kernels.name;
    }
    for (size_t t = 0; t < 31; ++t) lost += 7.5 * page.scale / 403;
    EXPECT_LT(std::abs(error / 64), 0.05 * lost) << kernels.name;
  }
}

TEST(Attention, SharesOfATokenAddUpItsValuesAsAttentionDoesForAnyThreads) {
  for (const Case& test : kCases) {
    for (uint32_t tokens : {1u, 33u, 150u}) {
      Attention attention(test, tokens);
      const std::vector<float> shares = attention.shares(twin(), 1);
      EXPECT_EQ(attention.shares(twin(), 3), shares);
      for (uint32_t head = 0; head < test.heads; ++head) {
        const std::vector<float> alone = attention.shares(twin(), 2, head);
        const size_t row = size_t(head) * tokens;
        EXPECT_TRUE(std::equal(&shares[row], &shares[row] + tokens, &alone[row])) << "head " << head;
      }
      const std::vector<double> expected = attention.expected_of_queries(1);
      const std::vector<double> out = attention.values_under(shares);
      for (size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(out[i], expected[i], rounding(test.shape));
    }
  }
}

TEST(Attention, OfATokenDoesNotSeeAnInfiniteValueThatComesLaterInItsChunk) {
  for (const CpuKernels& kernels : attention_kernels()) {
    for (const Case& test : kCases) {
      Attention attention(test, 40);
      attention.overflow_last_value();
      const std::vector<float> alone = attention.compute(kernels, 40, 1, 1);
      const std::vector<float> chunk = attention.compute(kernels, 40, 40, 1);
      const size_t last = chunk.size() / 40 * 39;
      ASSERT_TRUE(std::equal(chunk.begin(), chunk.begin() + ptrdiff_t(last), alone.begin())) << kernels.name;
      ASSERT_FALSE(std::isfinite(chunk.back())) << kernels.name << " hides an overflow";
    }
  }
}

}  // namespace
}  // namespace quire
