#include <algorithm>
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

constexpr uint32_t kTokens = 150, kMost = 37;

// An index of one sequence: keys in pages, and what its heads ask.
class IndexCase {
 public:
  IndexCase(uint32_t heads, uint32_t dim, KvFormat format)
      : heads_(heads),
        dim_(dim),
        layout_(make_kv_layout(std::vector{KvStream{.kv_heads = 1, .key_dim = dim, .key_format = format}})) {
    std::mt19937 random(heads * 100 + dim);
    const auto fill = [&](std::vector<float>& values, size_t count) {
      values.resize(count);
      for (float& value : values) value = float(int(random() % 2001) - 1000) / 500.0f;
    };
    fill(query_, size_t(kTokens) * heads * dim);
    fill(key_, size_t(kTokens) * dim);
    fill(weights_, size_t(kTokens) * heads);
  }

  std::vector<float>& weights() { return weights_; }

  // By token: [kTokens, kMost].
  std::vector<uint32_t> choose(const CpuKernels& kernels, uint32_t chunk, uint32_t threads) {
    CpuBackend backend(kernels, threads);
    HostKv kv(layout_, pages_for(layout_, kTokens, kTokens, 1));
    PageTable table = kv.make_table();
    EXPECT_TRUE(kv.reserve(table, kTokens));
    const PageTable* tables[] = {&table};
    std::vector<uint32_t> chosen(size_t(kTokens) * kMost);
    std::vector<float> query = query_;
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
      const KvView view{&groups[0], &layout_.groups[0].layers[0]};
      const size_t width = size_t(heads_) * dim_;
      const Rows rows{query.data() + done * width, n, width, width};
      backend.rope_store({.query = rows,
                          .key = {key_.data() + size_t(done) * dim_, n, dim_, dim_},
                          .value = {},
                          .head_dim = dim_,
                          .cos = {},
                          .sin = {},
                          .kv = view});
      backend.choose_rows({.query = rows,
                           .weights = {weights_.data() + size_t(done) * heads_, n, heads_, heads_},
                           .heads = heads_,
                           .kv = view,
                           .most = kMost,
                           .chosen = std::span(chosen).subspan(size_t(done) * kMost, size_t(n) * kMost)});
    }
    return chosen;
  }

  double score(uint32_t token, uint32_t row) const {
    double sum = 0;
    for (uint32_t h = 0; h < heads_; ++h) {
      double score = 0;
      for (uint32_t d = 0; d < dim_; ++d)
        score +=
            double(query_[(size_t(token) * heads_ + h) * dim_ + d]) * double(key_[size_t(row) * dim_ + d]);
      sum += double(weights_[size_t(token) * heads_ + h]) * std::max(score, 0.0);
    }
    return sum;
  }

 private:
  uint32_t heads_, dim_;
  KvLayout layout_;
  std::vector<float> query_, key_, weights_;
};

TEST(ChooseRows, TakesThoseWithTheLargestScoresInOrder) {
  for (const auto& [heads, dim] : {std::pair(64u, 128u), {6u, 20u}, {19u, 32u}}) {
    IndexCase index(heads, dim, KvFormat::f32);
    for (const CpuKernels& kernels : present_kernels()) {
      const std::vector<uint32_t> chosen = index.choose(kernels, kTokens, 2);
      for (uint32_t t = kMost; t < kTokens; ++t) {
        const std::span rows(&chosen[size_t(t) * kMost], kMost);
        std::vector<double> left;
        double least = 1e30;
        for (uint32_t row = 0, i = 0; row <= t; ++row) {
          if (i < kMost && rows[i] == row) {
            least = std::min(least, index.score(t, row));
            ++i;
          } else {
            left.push_back(index.score(t, row));
          }
          ASSERT_TRUE(row < t || i == kMost) << "not in order, or not seen";
        }
        ASSERT_GE(least, *std::max_element(left.begin(), left.end()) - 1e-3) << kernels.name << " " << t;
      }
    }
  }
}

TEST(ChooseRows, IsTheSameForAnyKernelsChunksAndThreads) {
  for (const KvFormat format : {KvFormat::f32, KvFormat::f16, KvFormat::fp8, KvFormat::int8, KvFormat::q4}) {
    for (const auto& [heads, dim] : {std::pair(64u, 128u), {6u, 20u}}) {
      IndexCase index(heads, dim, format);
      CpuKernels twin = scalar_kernels();
      twin.attend = attend_scalar;
      const std::vector<uint32_t> expected = index.choose(twin, kTokens, 1);
      for (const CpuKernels& kernels : present_kernels()) {
#if !defined(__aarch64__)
        if (kernels.attend == attend_baseline) continue;  // without fused multiply-adds
#endif
        for (const auto& [chunk, threads] : {std::pair(kTokens, 1u), {kTokens, 3u}, {1u, 2u}, {17u, 5u}})
          ASSERT_EQ(index.choose(kernels, chunk, threads), expected)
              << kernels.name << " " << name(format) << " " << chunk << " " << threads;
      }
    }
  }
}

TEST(ChooseRows, OfEqualScoresTheEarlierRowComesFirstAndNoNumberLast) {
  IndexCase index(8, 16, KvFormat::f32);
  std::fill(index.weights().begin(), index.weights().end(), -0.0f);
  std::fill_n(index.weights().end() - 8, 8, std::numeric_limits<float>::quiet_NaN());
  const std::vector<uint32_t> chosen = index.choose(present_kernels().back(), kTokens, 2);
  for (uint32_t t = kMost; t < kTokens; ++t) {
    for (uint32_t i = 0; i < kMost; ++i) ASSERT_EQ(chosen[size_t(t) * kMost + i], i);
  }
}

}  // namespace
}  // namespace quire
