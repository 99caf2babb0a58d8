#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "backend/cpu/amx/plain_attend_tiles.h"
#include "backend/cpu/attend_pages.h"
#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/kernel_choice.h"
#include "backend/cpu/kv_rows.h"
#include "kv/kv_cache.h"
#include "tensor/float16.h"

namespace quire {
namespace {

// One sequence whose keys and values are random, and its attention in double precision.
struct Case {
  KvLayerShape shape;
  uint32_t heads = 0;
  float soft_cap = 0;
  bool sinks = false;
};

constexpr float kScale = 0.3f;

// What a page gives back of rows of `dim` values.
std::vector<float> stored(KvFormat format, std::vector<float> values, size_t dim) {
  std::vector<std::byte> bytes(kv_row_bytes(format, dim));
  for (size_t i = 0; i < values.size(); i += dim) {
    const std::span row(values.data() + i, dim);
    store_kv_row(format, row, bytes.data());
    load_kv_row(format, bytes.data(), row);
    if (is_rotated(format)) rotate_kv_row(row);
  }
  return values;
}

class Attention {
 public:
  Attention(const Case& test, uint32_t tokens)
      : test_(test), tokens_(tokens), layout_(make_kv_layout(std::vector{test.shape})) {
    std::mt19937 random(tokens + test.heads);
    const auto fill = [&](std::vector<float>& values, size_t count) {
      values.resize(count);
      for (float& value : values) value = float(int(random() % 2001) - 1000) / 500.0f;
    };
    fill(query_, size_t(tokens) * test.heads * test.shape.key_dim);
    fill(key_, size_t(tokens) * test.shape.kv_heads * test.shape.key_dim);
    fill(value_, size_t(tokens) * test.shape.kv_heads * test.shape.value_dim);
    fill(sinks_, test.heads);
    see();
  }

  // Makes some numbers of a row very small beside others.
  void spread() {
    for (size_t i = 0; i < key_.size(); ++i) key_[i] = std::ldexp(key_[i], -int(i % 17));
    for (size_t i = 0; i < value_.size(); ++i) value_[i] = std::ldexp(value_[i], -int(i % 19));
    see();
  }

  // The last `count` tokens' rows, computed in runs of at most `chunk` by `threads` threads.
  std::vector<float> compute(const CpuKernels& kernels, uint32_t count, uint32_t chunk, uint32_t threads) {
    CpuBackend backend(kernels, threads);
    KvCache kv(layout_, pages_for(layout_, tokens_, tokens_, 1), [](size_t bytes) { return Buffer(bytes); });
    PageTable table = kv.make_table();
    EXPECT_TRUE(kv.reserve(table, tokens_));
    const PageTable* tables[] = {&table};
    const size_t width = size_t(test_.heads) * test_.shape.value_dim;
    std::vector<float> out(count * width);
    store(backend, kv, tables);
    for (uint32_t done = 0; done < count; done += chunk) {
      const uint32_t n = std::min(chunk, count - done), first = tokens_ - count + done;
      begin(backend, first, n);
      KvCache::FlatTables flat;
      const std::vector<KvGroupView> groups = kv.view(tables, flat);
      const KvView view{&groups[0], &layout_.groups[0].layers[0]};
      Activation result;
      result.f32 = {out.data() + done * width, n, width, width};
      AttendParams params{.query = rows(stored_query_, first, n),
                          .heads = test_.heads,
                          .kv = view,
                          .scale = kScale,
                          .soft_cap = test_.soft_cap,
                          .sinks = {},
                          .out = result};
      if (test_.sinks)
        params.sinks = {{reinterpret_cast<const std::byte*>(sinks_.data()), DType::f32, 1, test_.heads},
                        nullptr};
      backend.attend(params);
    }
    return out;
  }

  // Of the last token: [heads, tokens]; of one head alone if it is given.
  std::vector<float> shares(const CpuKernels& kernels, uint32_t threads,
                            std::optional<uint32_t> head = std::nullopt) {
    CpuBackend backend(kernels, threads);
    KvCache kv(layout_, pages_for(layout_, tokens_, tokens_, 1), [](size_t bytes) { return Buffer(bytes); });
    PageTable table = kv.make_table();
    EXPECT_TRUE(kv.reserve(table, tokens_));
    const PageTable* tables[] = {&table};
    store(backend, kv, tables);
    KvCache::FlatTables flat;
    const std::vector<KvGroupView> groups = kv.view(tables, flat);
    std::vector<float> out(size_t(test_.heads) * tokens_);
    AttentionSharesParams params{.query = rows(stored_query_, 0, tokens_),
                                 .heads = test_.heads,
                                 .kv = {&groups[0], &layout_.groups[0].layers[0]},
                                 .scale = kScale,
                                 .soft_cap = test_.soft_cap,
                                 .sinks = {},
                                 .token = tokens_ - 1,
                                 .out = {out.data(), test_.heads, tokens_, tokens_},
                                 .head = head};
    if (test_.sinks)
      params.sinks = {{reinterpret_cast<const std::byte*>(sinks_.data()), DType::f32, 1, test_.heads},
                      nullptr};
    backend.attention_shares(params);
    return out;
  }

  // What the last token's attention comes to if it takes such shares of the values.
  std::vector<double> values_under(std::span<const float> shares) const {
    const KvLayerShape& s = test_.shape;
    std::vector<double> out;
    for (uint32_t h = 0; h < test_.heads; ++h) {
      const uint32_t kv_head = h / (test_.heads / s.kv_heads);
      for (uint32_t d = 0; d < s.value_dim; ++d) {
        double value = 0;
        for (uint32_t p = 0; p < tokens_; ++p)
          value += double(shares[h * tokens_ + p]) *
                   double(seen_value_[(size_t(p) * s.kv_heads + kv_head) * s.value_dim + d]);
        out.push_back(value);
      }
    }
    return out;
  }

  void overflow_last_value() { value_.back() = std::numeric_limits<float>::infinity(); }

  std::vector<double> expected(uint32_t count) const {
    return expected(count, seen_query_, seen_key_, seen_value_);
  }

  // As if queries were not rounded.
  std::vector<double> expected_of_queries(uint32_t count) const {
    return expected(count, scaled_query_, seen_key_, seen_value_);
  }

  // As if pages lost nothing.
  std::vector<double> expected_of_floats(uint32_t count) const {
    return expected(count, scaled_query_, key_, value_);
  }

 private:
  std::vector<double> expected(uint32_t count, const std::vector<float>& queries,
                               const std::vector<float>& keys, const std::vector<float>& values) const {
    const KvLayerShape& s = test_.shape;
    std::vector<double> out;
    for (uint32_t t = tokens_ - count; t < tokens_; ++t) {
      for (uint32_t h = 0; h < test_.heads; ++h) {
        const uint32_t kv_head = h / (test_.heads / s.kv_heads);
        const uint32_t first = s.window == 0 || t < s.window ? 0 : t + 1 - s.window;
        std::vector<double> scores;
        for (uint32_t p = first; p <= t; ++p) {
          double score = 0;
          for (uint32_t d = 0; d < s.key_dim; ++d) {
            score += double(queries[(size_t(t) * test_.heads + h) * s.key_dim + d]) *
                     double(keys[(size_t(p) * s.kv_heads + kv_head) * s.key_dim + d]);
          }
          if (test_.soft_cap > 0) score = double(test_.soft_cap) * std::tanh(score / double(test_.soft_cap));
          scores.push_back(score);
        }
        double max = *std::max_element(scores.begin(), scores.end());
        if (test_.sinks) max = std::max(max, double(sinks_[h]));
        double sum = test_.sinks ? std::exp(double(sinks_[h]) - max) : 0.0;
        for (double& score : scores) sum += score = std::exp(score - max);
        for (uint32_t d = 0; d < s.value_dim; ++d) {
          double value = 0;
          for (uint32_t p = first; p <= t; ++p) {
            value += scores[p - first] * double(values[(size_t(p) * s.kv_heads + kv_head) * s.value_dim + d]);
          }
          out.push_back(value / sum);
        }
      }
    }
    return out;
  }

  void see() {
    scaled_query_ = query_;
    for (float& value : scaled_query_) value *= kScale;
    seen_query_ = scaled_query_;
    if (test_.shape.key_format == KvFormat::bf16) {
      for (float& value : seen_query_) value = bf16_to_f32(f32_to_bf16(value));
    }
    seen_key_ = stored(test_.shape.key_format, key_, test_.shape.key_dim);
    seen_value_ = stored(test_.shape.value_format, value_, test_.shape.value_dim);
  }

  Rows rows(std::vector<float>& values, uint32_t first, uint32_t count) const {
    const size_t width = values.size() / tokens_;
    return {values.data() + first * width, count, width, width};
  }

  void begin(CpuBackend& backend, uint32_t first, uint32_t count) {
    tokens_of_.assign(count, 0);
    run_of_.assign(count, 0);
    positions_.clear();
    for (uint32_t i = 0; i < count; ++i) positions_.push_back(first + i);
    run_ = {0, count, first, first};
    backend.begin_step({tokens_of_, positions_, run_of_, {&run_, 1}, {}});
  }

  void store(CpuBackend& backend, KvCache& kv, std::span<const PageTable* const> tables) {
    begin(backend, 0, tokens_);
    KvCache::FlatTables flat;
    const std::vector<KvGroupView> groups = kv.view(tables, flat);
    stored_query_ = query_;
    backend.rope_store({.query = rows(stored_query_, 0, tokens_),
                        .key = rows(key_, 0, tokens_),
                        .value = rows(value_, 0, tokens_),
                        .head_dim = test_.shape.key_dim,
                        .query_norm = nullptr,
                        .key_norm = nullptr,
                        .cos = {},
                        .sin = {},
                        .pairing = RopePairing::halves,
                        .kv = {&groups[0], &layout_.groups[0].layers[0]}});
  }

  Case test_;
  uint32_t tokens_;
  KvLayout layout_;
  std::vector<float> query_, key_, value_, sinks_;
  std::vector<float> scaled_query_, seen_query_;  // what keys are multiplied with
  std::vector<float> stored_query_;               // turned, where keys are
  std::vector<float> seen_key_, seen_value_;      // what the pages give back
  std::vector<TokenId> tokens_of_;
  std::vector<uint32_t> positions_, run_of_;
  TokenRun run_;
};

const Case kCases[] = {
    {{.kv_heads = 2,
      .key_dim = 64,
      .value_dim = 64,
      .window = 0,
      .key_format = KvFormat::f16,
      .value_format = KvFormat::f16},
     8},
    {{.kv_heads = 1,
      .key_dim = 24,
      .value_dim = 20,
      .window = 0,
      .key_format = KvFormat::f32,
      .value_format = KvFormat::f32},
     3},
    {{.kv_heads = 3,
      .key_dim = 16,
      .value_dim = 16,
      .window = 37,
      .key_format = KvFormat::f16,
      .value_format = KvFormat::f16},
     3,
     0,
     true},
    {{.kv_heads = 2,
      .key_dim = 10,
      .value_dim = 7,
      .window = 0,
      .key_format = KvFormat::f32,
      .value_format = KvFormat::f32},
     10,
     5.0f,
     true},
    {{.kv_heads = 2,
      .key_dim = 32,
      .value_dim = 48,
      .window = 0,
      .key_format = KvFormat::bf16,
      .value_format = KvFormat::bf16},
     4},
    {{.kv_heads = 1,
      .key_dim = 12,
      .value_dim = 9,
      .window = 70,
      .key_format = KvFormat::bf16,
      .value_format = KvFormat::f16},
     19},
    {{.kv_heads = 2,
      .key_dim = 64,
      .value_dim = 64,
      .window = 0,
      .key_format = KvFormat::int8,
      .value_format = KvFormat::int8},
     8},
    {{.kv_heads = 1,
      .key_dim = 128,
      .value_dim = 80,
      .window = 0,
      .key_format = KvFormat::q4,
      .value_format = KvFormat::q4},
     5},
    {{.kv_heads = 2,
      .key_dim = 40,
      .value_dim = 22,
      .window = 50,
      .key_format = KvFormat::fp8,
      .value_format = KvFormat::q4_plain},
     6,
     5.0f,
     true},
    {{.kv_heads = 1,
      .key_dim = 64,
      .value_dim = 64,
      .window = 0,
      .key_format = KvFormat::f16,
      .value_format = KvFormat::int8},
     20},
    {{.kv_heads = 2,
      .key_dim = 64,
      .value_dim = 64,
      .window = 0,
      .key_format = KvFormat::fp8,
      .value_format = KvFormat::fp8},
     8},
    {{.kv_heads = 1,
      .key_dim = 14,
      .value_dim = 26,
      .window = 0,
      .key_format = KvFormat::fp8,
      .value_format = KvFormat::fp8},
     4},
    {{.kv_heads = 2,
      .key_dim = 20,
      .value_dim = 32,
      .window = 45,
      .key_format = KvFormat::fp8,
      .value_format = KvFormat::fp8},
     20},
    {{.kv_heads = 3,
      .key_dim = 64,
      .value_dim = 64,
      .window = 0,
      .key_format = KvFormat::q4,
      .value_format = KvFormat::q4},
     9},
    {{.kv_heads = 2,
      .key_dim = 48,
      .value_dim = 96,
      .window = 75,
      .key_format = KvFormat::int8,
      .value_format = KvFormat::q4_plain},
     10,
     5.0f,
     true},
    {{.kv_heads = 2,
      .key_dim = 64,
      .value_dim = 64,
      .window = 0,
      .key_format = KvFormat::bf16,
      .value_format = KvFormat::bf16},
     8},
    {{.kv_heads = 1,
      .key_dim = 96,
      .value_dim = 128,
      .window = 45,
      .key_format = KvFormat::bf16,
      .value_format = KvFormat::bf16},
     5,
     5.0f,
     true},
    {{.kv_heads = 1,
      .key_dim = 64,
      .value_dim = 32,
      .window = 0,
      .key_format = KvFormat::bf16,
      .value_format = KvFormat::int8},
     20},
    {{.kv_heads = 1,
      .key_dim = 24,
      .value_dim = 64,
      .window = 70,
      .key_format = KvFormat::fp8,
      .value_format = KvFormat::bf16},
     3},
};

// What rounding queries and shares may cost, to 14 bits for int8 and to 8 for q4: far less than the codes have cost already,
// as a test below measures. Most it costs in scores, which are as large as 20 here. A share before bf16 is wrong by 2^-9 of itself
// at most. Floats are right but for their last bits.
double tolerance(const Case& test) {
  const KvLayerShape& shape = test.shape;
  double most = 4e-6;
  if (sums_codes(shape.key_format, shape.key_dim)) most += shape.key_format == KvFormat::int8 ? 1e-3 : 0.15;
  if (sums_codes(shape.value_format, shape.value_dim))
    most += shape.value_format == KvFormat::int8 ? 1e-3 : 4e-2;
  if (shape.value_format == KvFormat::bf16) most += 4e-3;
  return most;
}

// Sixteen lanes on any machine, so that the widest tiles are tested where there is no AVX-512.
struct SixteenLanes {
  static constexpr size_t kLanes = 16, kScoreRows = 4, kValueVectors = 4;
  static constexpr bool kReadsKeys = false, kScoresQuads = true, kRoundsToBf16 = true;
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
  return name == "plain tiles" || name == "amx" || name == "i8mm";
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
      for (size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(out[i], expected[i], 4e-6);
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
