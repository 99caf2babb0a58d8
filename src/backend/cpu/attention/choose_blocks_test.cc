#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/kernel_choice.h"
#include "kv/host_kv.h"

namespace quire {
namespace {

constexpr uint32_t kTokens = 230, kKvHeads = 2, kHeads = 6, kDim = 32, kIndexDim = 20;
constexpr uint32_t kBlock = 32, kMost = 3;
constexpr float kScale = 0.3f;

// What a step makes: numbers of blocks, [tokens, KV heads, most], and what is attended, [tokens, heads, dim].
struct Result {
  std::vector<uint32_t> chosen;
  std::vector<float> out;

  bool operator==(const Result&) const = default;
};

// Attention of one sequence whose KV heads choose blocks: a stream of keys and values, and one of keys of the index.
class BlocksCase {
 public:
  explicit BlocksCase(KvFormat format, uint32_t local = 1)
      : local_(local),
        layout_(make_kv_layout(
            std::vector<KvLayer>{{KvStream{.kv_heads = kKvHeads,
                                           .key_dim = kDim,
                                           .value_dim = kDim,
                                           .key_format = format,
                                           .value_format = format},
                                  KvStream{.kv_heads = 1, .key_dim = kIndexDim, .key_format = format}}})) {
    std::mt19937 random(7);
    const auto fill = [&](std::vector<float>& values, size_t width) {
      values.resize(kTokens * width);
      for (float& value : values) value = float(int(random() % 2001) - 1000) / 500.0f;
    };
    fill(query_, kHeads * kDim);
    fill(key_, kKvHeads * kDim);
    fill(value_, kKvHeads * kDim);
    fill(index_query_, kKvHeads * kIndexDim);
    fill(index_key_, kIndexDim);
  }

  std::vector<float>& index_key() { return index_key_; }

  Result run(const CpuKernels& kernels, uint32_t chunk, uint32_t threads) {
    CpuBackend backend(kernels, threads);
    HostKv kv(layout_, pages_for(layout_, kTokens, kTokens, 1));
    PageTable table = kv.make_table();
    EXPECT_TRUE(kv.reserve(table, kTokens));
    const PageTable* tables[] = {&table};
    Result result{std::vector<uint32_t>(kTokens * kKvHeads * kMost), std::vector<float>(query_.size())};
    std::vector<float> query = query_, index_query = index_query_;
    for (uint32_t done = 0; done < kTokens; done += chunk) {
      const uint32_t n = std::min(chunk, kTokens - done);
      const std::vector<TokenId> ids(n, 0);
      const std::vector<uint32_t> run_of(n, 0);
      std::vector<uint32_t> positions(n);
      std::iota(positions.begin(), positions.end(), done);
      const TokenRun run{0, n, done};
      backend.begin_step({ids, positions, run_of, {&run, 1}, {}}, {});
      KvTables flat;
      const std::vector<KvGroupView> groups = kv.view(tables, flat);
      const KvView rows{&groups[0], &layout_.groups[0].layers[0]},
          index{&groups[0], &layout_.groups[0].layers[1]};
      const auto part = [&](std::vector<float>& values) -> Rows {
        const size_t width = values.size() / kTokens;
        return {values.data() + done * width, n, width, width};
      };
      const auto store = [&](const Rows& asked, const Rows& key, const Rows& value, uint32_t dim,
                             const KvView& view) {
        backend.rope_store(
            {.query = asked, .key = key, .value = value, .head_dim = dim, .cos = {}, .sin = {}, .kv = view});
      };
      store(part(query), part(key_), part(value_), kDim, rows);
      store(part(index_query), part(index_key_), {}, kIndexDim, index);
      const std::span chosen =
          std::span(result.chosen).subspan(done * kKvHeads * kMost, n * kKvHeads * kMost);
      backend.choose_blocks({.query = part(index_query),
                             .heads = kKvHeads,
                             .kv = index,
                             .block = kBlock,
                             .most = kMost,
                             .local = local_,
                             .chosen = chosen});
      Activation out;
      out.f32 = part(result.out);
      backend.attend({.query = part(query),
                      .heads = kHeads,
                      .kv = rows,
                      .scale = kScale,
                      .chosen = chosen,
                      .most = kMost,
                      .block = kBlock,
                      .sinks = {},
                      .out = out});
    }
    return result;
  }

  // Of the best row that the token sees.
  double score(uint32_t token, uint32_t head, uint32_t block) const {
    double best = -1e30;
    for (uint32_t row = block * kBlock; row <= std::min(token, (block + 1) * kBlock - 1); ++row)
      best = std::max(best, dot(index_query_, token * kKvHeads + head, index_key_, row, kIndexDim));
    return best;
  }

  // What a head makes of the rows of some blocks.
  std::vector<double> attended(uint32_t token, uint32_t head, const std::vector<uint32_t>& blocks) const {
    const uint32_t kv_head = head / (kHeads / kKvHeads);
    std::vector<double> sum(kDim);
    double shares = 0;
    for (const uint32_t block : blocks) {
      for (uint32_t row = block * kBlock; row <= std::min(token, (block + 1) * kBlock - 1); ++row) {
        const double share =
            std::exp(kScale * dot(query_, token * kHeads + head, key_, row * kKvHeads + kv_head, kDim));
        shares += share;
        for (uint32_t d = 0; d < kDim; ++d)
          sum[d] += share * double(value_[(row * kKvHeads + kv_head) * kDim + d]);
      }
    }
    for (double& value : sum) value /= shares;
    return sum;
  }

 private:
  static double dot(const std::vector<float>& a, size_t i, const std::vector<float>& b, size_t j,
                    uint32_t dim) {
    double sum = 0;
    for (uint32_t d = 0; d < dim; ++d) sum += double(a[i * dim + d]) * double(b[j * dim + d]);
    return sum;
  }

  uint32_t local_;
  KvLayout layout_;
  std::vector<float> query_, key_, value_, index_query_, index_key_;
};

// Those that a token has; of one that sees no more than it may have, all.
std::vector<uint32_t> blocks_of(const Result& result, uint32_t token, uint32_t kv_head) {
  const uint32_t own = token / kBlock;
  std::vector<uint32_t> blocks(std::min(own + 1, kMost));
  std::iota(blocks.begin(), blocks.end(), 0u);
  if (own >= kMost)
    std::copy_n(result.chosen.begin() + (token * kKvHeads + kv_head) * kMost, kMost, blocks.begin());
  return blocks;
}

TEST(ChooseBlocks, TakesTheLastOnesAndThoseWithTheBestRowsOfTheOthersForEachKvHead) {
  for (const uint32_t local : {1u, 2u, 3u}) {
    BlocksCase blocks(KvFormat::f32, local);
    for (const CpuKernels& kernels : present_kernels()) {
      const Result result = blocks.run(kernels, kTokens, 2);
      for (uint32_t t = kMost * kBlock; t < kTokens; ++t) {
        for (uint32_t h = 0; h < kKvHeads; ++h) {
          const std::vector<uint32_t> chosen = blocks_of(result, t, h);
          ASSERT_TRUE(std::ranges::is_sorted(chosen));
          const uint32_t others = t / kBlock + 1 - local;
          for (uint32_t l = 0; l < local; ++l) ASSERT_EQ(chosen[kMost - 1 - l], t / kBlock - l);
          double least = 1e30, left = -1e30;
          for (uint32_t b = 0; b < others; ++b) {
            const bool is_chosen = std::ranges::count(chosen, b) > 0;
            if (is_chosen) least = std::min(least, blocks.score(t, h, b));
            if (!is_chosen) left = std::max(left, blocks.score(t, h, b));
          }
          ASSERT_GE(least, left - 1e-3) << kernels.name << " " << t;
        }
      }
    }
  }
}

TEST(ChooseBlocks, AttentionIsToTheRowsOfThoseAlone) {
  BlocksCase blocks(KvFormat::f32);
  for (const CpuKernels& kernels : present_kernels()) {
    const Result result = blocks.run(kernels, kTokens, 2);
    for (uint32_t t = 0; t < kTokens; ++t) {
      for (uint32_t h = 0; h < kHeads; ++h) {
        const std::vector<double> expected =
            blocks.attended(t, h, blocks_of(result, t, h / (kHeads / kKvHeads)));
        for (uint32_t d = 0; d < kDim; ++d)
          ASSERT_NEAR(result.out[(t * kHeads + h) * kDim + d], expected[d], 2e-5) << kernels.name << " " << t;
      }
    }
  }
}

TEST(ChooseBlocks, IsTheSameForAnyKernelsChunksAndThreads) {
  for (const KvFormat format : {KvFormat::f32, KvFormat::f16, KvFormat::fp8, KvFormat::q4}) {
    BlocksCase blocks(format);
    CpuKernels twin = scalar_kernels();
    twin.attend = attend_scalar;
    const Result expected = blocks.run(twin, kTokens, 1);
    for (const CpuKernels& kernels : present_kernels()) {
#if !defined(__aarch64__)
      if (kernels.attend == attend_baseline) continue;  // without fused multiply-adds
#endif
      for (const auto& [chunk, threads] : {std::pair(kTokens, 1u), {kTokens, 3u}, {1u, 2u}, {17u, 5u}})
        ASSERT_EQ(blocks.run(kernels, chunk, threads), expected)
            << kernels.name << " " << name(format) << " " << chunk << " " << threads;
    }
  }
}

TEST(ChooseBlocks, OfEqualScoresTheEarlierBlockComesFirstAndNoNumberLast) {
  BlocksCase blocks(KvFormat::f32);
  std::fill(blocks.index_key().begin(), blocks.index_key().end(), 0.0f);
  std::fill_n(blocks.index_key().begin(), kBlock * kIndexDim, std::numeric_limits<float>::quiet_NaN());
  const Result result = blocks.run(present_kernels().back(), kTokens, 2);
  for (uint32_t t = (kMost + 1) * kBlock; t < kTokens; ++t) {
    for (uint32_t h = 0; h < kKvHeads; ++h)
      ASSERT_EQ(blocks_of(result, t, h), (std::vector<uint32_t>{1, 2, t / kBlock}));
  }
}

}  // namespace
}  // namespace quire
