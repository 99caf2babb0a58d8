// Attention of sequences whose KV heads have unequal numbers of rows, against sums in double precision over the rows that each
// head should have.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/kernel_choice.h"
#include "kv/host_kv.h"

namespace quire {
namespace {

constexpr uint32_t kPrompt = 150, kAnswer = 45, kTokens = kPrompt + kAnswer, kKept = 70, kPage = 16;
constexpr uint32_t kLayers = 2, kKvHeads = 3, kHeads = 6, kDim = 8;
// What a pruned prompt keeps of each head of each layer: 70 on average, whole pages more or fewer.
constexpr uint32_t kRows[kLayers][kKvHeads] = {{150 - 0, 6, 54}, {70, 22, 118}};
constexpr float kScale = 0.4f;

struct Layer {
  std::vector<float> query, key, value;  // [tokens, heads * dim]
};

class PrunedAttention : public testing::Test {
 protected:
  PrunedAttention() : kv_(layout_, std::vector<uint32_t>{40}) {
    std::mt19937 random(7);
    for (Layer& layer : layers_) {
      for (auto [values, heads] : {std::pair(&layer.query, kHeads), std::pair(&layer.key, kKvHeads),
                                   std::pair(&layer.value, kKvHeads)}) {
        values->resize(size_t(kTokens) * heads * kDim);
        for (float& value : *values) value = float(int(random() % 2001) - 1000) / 500.0f;
      }
    }
    kept_.count = kKept;
    std::vector<uint32_t> all(kPrompt);
    std::iota(all.begin(), all.end(), 0u);
    for (const auto& layer : kRows) {
      for (const uint32_t rows : layer)
        std::ranges::sample(all, std::back_inserter(kept_.of_head.emplace_back()), rows, random);
    }
  }

  static Rows rows(std::vector<float>& values, uint32_t first, uint32_t count) {
    const size_t width = values.size() / kTokens;
    return {values.data() + first * width, count, width, width};
  }

  // Some tokens of the sequence, beside a run of another that is not pruned: begins the step and stores their rows.
  struct Step {
    std::vector<TokenId> tokens;
    std::vector<uint32_t> positions, run_of;
    std::vector<TokenRun> runs;
    KvTables flat;
    std::vector<KvGroupView> groups;
  };
  void begin(CpuBackend& backend, Step& step, const PageTable& table, uint32_t first, uint32_t count,
             uint32_t row) {
    step.tokens.assign(count, 0);
    step.run_of.assign(count, 1);
    step.positions.resize(count);
    std::iota(step.positions.begin(), step.positions.end(), first);
    step.runs = {{0, 0, 0}, {0, count, row}};
    const PageTable* tables[] = {&other_, &table};
    step.groups = kv_.view(tables, step.flat);
    backend.begin_step({step.tokens, step.positions, step.run_of, step.runs, {}}, {});
    for (uint32_t l = 0; l < kLayers; ++l) {
      backend.rope_store({.query = rows(layers_[l].query, first, count),
                          .key = rows(layers_[l].key, first, count),
                          .value = rows(layers_[l].value, first, count),
                          .head_dim = kDim,
                          .query_norm = nullptr,
                          .key_norm = nullptr,
                          .cos = {},
                          .sin = {},
                          .pairing = RopePairing::halves,
                          .kv = {&step.groups[0], &layout_.groups[0].layers[l]}});
    }
  }

  // The attention of the answer's tokens in one layer, in runs of at most `chunk`.
  std::vector<float> compute(const CpuKernels& kernels, uint32_t layer, uint32_t chunk, uint32_t threads) {
    CpuBackend backend(kernels, threads);
    PageTable table = kv_.make_table();
    Step step;
    EXPECT_TRUE(kv_.reserve(table, kPrompt));
    begin(backend, step, table, 0, kPrompt, 0);
    EXPECT_TRUE(kv_.keep_rows(table, kPrompt, kept_));
    constexpr size_t kWidth = kHeads * kDim;
    std::vector<float> out(kAnswer * kWidth);
    for (uint32_t done = 0; done < kAnswer; done += chunk) {
      const uint32_t count = std::min(chunk, kAnswer - done);
      EXPECT_TRUE(kv_.reserve(table, kKept + done + count));
      begin(backend, step, table, kPrompt + done, count, kKept + done);
      Activation result;
      result.f32 = {out.data() + done * kWidth, count, kWidth, kWidth};
      backend.attend({.query = rows(layers_[layer].query, kPrompt + done, count),
                      .heads = kHeads,
                      .kv = {&step.groups[0], &layout_.groups[0].layers[layer]},
                      .scale = kScale,
                      .soft_cap = 0,
                      .sinks = {},
                      .out = result});
    }
    shares_.assign(size_t(kHeads) * kTokens, -1.0f);
    const uint32_t last = uint32_t(step.tokens.size()) - 1;
    backend.tap(
        {.token = last, .heads = kHeads, .width = kTokens},
        {.query = rows(layers_[layer].query, kTokens - step.tokens.size(), uint32_t(step.tokens.size())),
         .heads = kHeads,
         .kv = {&step.groups[0], &layout_.groups[0].layers[layer]},
         .scale = kScale,
         .soft_cap = 0,
         .sinks = {},
         .out = {}},
        shares_);
    kv_.release(table, {}, 0, KvCache::Reason::forgotten);
    kv_.check_invariants();
    return out;
  }

  // The tokens that a head sees from one token of the answer.
  std::vector<uint32_t> seen(uint32_t layer, uint32_t kv_head, uint32_t token) const {
    std::vector<uint32_t> seen = kept_.of_head[layer * kKvHeads + kv_head];
    for (uint32_t later = kPrompt; later <= token; ++later) seen.push_back(later);
    return seen;
  }

  std::vector<double> expected_shares(uint32_t layer, uint32_t head, uint32_t token) const {
    const uint32_t kv_head = head / (kHeads / kKvHeads);
    std::vector<double> shares;
    double sum = 0;
    for (const uint32_t other : seen(layer, kv_head, token)) {
      double score = 0;
      for (uint32_t d = 0; d < kDim; ++d)
        score += double(layers_[layer].query[(token * kHeads + head) * kDim + d]) *
                 double(layers_[layer].key[(other * kKvHeads + kv_head) * kDim + d]);
      sum += shares.emplace_back(std::exp(score * double(kScale)));
    }
    for (double& share : shares) share /= sum;
    return shares;
  }

  double expected(uint32_t layer, uint32_t head, uint32_t token, uint32_t d) const {
    const uint32_t kv_head = head / (kHeads / kKvHeads);
    const std::vector<uint32_t> tokens = seen(layer, kv_head, token);
    const std::vector<double> shares = expected_shares(layer, head, token);
    double value = 0;
    for (size_t i = 0; i < tokens.size(); ++i)
      value += shares[i] * double(layers_[layer].value[(tokens[i] * kKvHeads + kv_head) * kDim + d]);
    return value;
  }

  KvLayout layout_ = make_kv_layout(std::vector(kLayers, KvLayerShape{.kv_heads = kKvHeads,
                                                                      .key_dim = kDim,
                                                                      .value_dim = kDim,
                                                                      .key_format = KvFormat::f32,
                                                                      .value_format = KvFormat::f32}),
                                    kPage);
  HostKv kv_;
  PageTable other_{1, SequenceId{2}};
  Layer layers_[kLayers];
  KeptRows kept_;
  std::vector<float> shares_;  // of the last token that was computed: [heads, kTokens]
};

TEST_F(PrunedAttention, EachHeadSeesItsOwnRowsAndAllLaterTokens) {
  for (const CpuKernels& kernels : present_kernels()) {
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      const std::vector<float> got = compute(kernels, layer, kAnswer, 2);
      for (uint32_t i = 0; i < kAnswer; ++i) {
        for (uint32_t head = 0; head < kHeads; ++head) {
          for (uint32_t d = 0; d < kDim; ++d)
            ASSERT_NEAR(got[(i * kHeads + head) * kDim + d], expected(layer, head, kPrompt + i, d), 1e-4)
                << "layer " << layer << " token " << i << " head " << head;
        }
      }
    }
  }
}

TEST_F(PrunedAttention, EachHeadSaysWhereItLooksAmongItsOwnRows) {
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    compute(kernels_named("auto"), layer, 1, 2);
    for (uint32_t head = 0; head < kHeads; ++head) {
      std::vector<double> shares = expected_shares(layer, head, kTokens - 1);
      shares.resize(kTokens);
      for (uint32_t row = 0; row < kTokens; ++row)
        ASSERT_NEAR(shares_[head * kTokens + row], shares[row], 1e-5) << "head " << head << " row " << row;
    }
  }
}

TEST_F(PrunedAttention, ChunksAndThreadsCannotBeSeen) {
  for (const CpuKernels& kernels : present_kernels()) {
    const std::vector<float> whole = compute(kernels, 0, kAnswer, 1);
    EXPECT_EQ(compute(kernels, 0, 1, 3), whole);
    EXPECT_EQ(compute(kernels, 0, 13, 2), whole);
  }
}

}  // namespace
}  // namespace quire
