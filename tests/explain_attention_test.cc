// What `quire explain --view attention` shows, against shares computed here from the queries and keys of a model.
#include <cmath>
#include <cstring>

#include <gtest/gtest.h>

#include "backend/cpu/kernel_choice.h"
#include "base/json.h"
#include "engine/text_runner.h"
#include "explain/attention.h"
#include "golden_model.h"

namespace quire {
namespace {

constexpr uint32_t kAnswer = 6;

Request greedy(const Golden& golden) {
  Request request;
  request.prompt = golden.prompt;
  request.sampling.temperature = 0;
  request.max_tokens = kAnswer;
  request.ignore_end = true;
  return request;
}

EngineOptions in_chunks(uint32_t chunk) {
  return {.prefill_chunk = chunk, .kv_formats = KvFormat::f32};
}

// The shares of all heads of one layer, for all tokens computed in one pass, by the definition: [head][query][key].
using HeadShares = std::vector<std::vector<std::vector<double>>>;

Weight weight_of(const Weights& weights, uint32_t layer, const std::string& role) {
  for (const BlockWeights& block : weights.blocks) {
    for (size_t i = 0; block.layer == layer && i < block.roles.size(); ++i) {
      if (block.roles[i].name == role) return block.weights[i];
    }
  }
  return {};
}

HeadShares softmax_by_hand(BareModel& model, uint32_t layer, std::span<const TokenId> fed, uint32_t window) {
  const GqaSpec& gqa = model.spec.layers[layer].gqa();
  const uint32_t tokens = uint32_t(fed.size()), width = gqa.heads * gqa.key_dim;
  TextRunner runner(model.engine_model(), KvFormat::f32, tokens, tokens, TextRunner::Passed::stays);
  std::vector<Tap> taps;
  for (uint32_t t = 0; t < tokens; ++t) {
    taps.push_back({.what = Tap::What::queries,
                    .layer = layer,
                    .token = t,
                    .heads = gqa.heads,
                    .width = gqa.key_dim,
                    .at = size_t(t) * width});
  }
  const std::vector<float> queries = runner
                                         .compute(fed, TextRunner::Wanted::last_row, std::move(taps),
                                                  std::vector<float>(size_t(tokens) * width))
                                         .values;
  HeadShares shares(gqa.heads);
  for (uint32_t head = 0; head < gqa.heads; ++head) {
    std::vector<std::vector<float>> keys(tokens, std::vector<float>(gqa.key_dim));
    for (uint32_t k = 0; k < tokens; ++k) {
      const std::vector<std::byte> bytes =
          runner.bytes({.layer = layer, .head = head * gqa.kv_heads / gqa.heads, .row = k});
      std::memcpy(keys[k].data(), bytes.data(), bytes.size());
    }
    const Weight sinks = weight_of(model.weights, layer, "sinks");
    for (uint32_t q = 0; q < tokens; ++q) {
      std::vector<double> row(q + 1);
      double sum = sinks ? std::exp(double(sinks.vector()[head])) : 0;
      for (uint32_t k = 0; k <= q; ++k) {
        if (window > 0 && q - k >= window) continue;
        double score = 0;
        for (uint32_t d = 0; d < gqa.key_dim; ++d)
          score += double(queries[size_t(q) * width + head * gqa.key_dim + d]) * double(keys[k][d]);
        score *= double(gqa.scale);
        const double cap = double(gqa.soft_cap);
        if (cap > 0) score = cap * std::tanh(score / cap);
        sum += row[k] = std::exp(score);
      }
      for (double& share : row) share /= sum;
      shares[head].push_back(row);
    }
  }
  return shares;
}

struct Config {
  explicit Config(const std::string& name) {
    const Json config = read_json_file(golden_folder(name) + "/config.json");
    heads = config["num_attention_heads"];
    kv_heads = config["num_key_value_heads"];
    for (size_t i = 0; i < config["num_hidden_layers"].get<size_t>(); ++i) {
      const bool full = !config.contains("sliding_window") || config["sliding_window"].is_null() ||
                        (config.contains("layer_types") && config["layer_types"][i] == "full_attention");
      windows.push_back(full ? 0 : config["sliding_window"].get<uint32_t>());
    }
  }
  uint32_t heads, kv_heads;
  std::vector<uint32_t> windows;
};

class ExplainAttention : public testing::TestWithParam<const char*> {};

TEST_P(ExplainAttention, SharesAreTheSoftmaxOfQueriesAndKeys) {
  BareModel model(golden_folder(GetParam()), kernels_named("exact"), 2);
  const Golden golden = read_golden(GetParam());
  const Config config(GetParam());
  const bool sinks = model.spec.layers[0].gqa().sinks;
  for (uint32_t layer = 0; layer < config.windows.size(); ++layer) {
    const uint32_t head = (layer + 1) % config.heads;
    const AttentionTrace trace =
        trace_attention(model.engine_model(), in_chunks(7), greedy(golden), {.layer = layer, .head = head});
    std::vector<TokenId> fed = golden.prompt;
    fed.insert(fed.end(), golden.greedy.begin(), golden.greedy.begin() + kAnswer - 1);
    ASSERT_EQ(trace.tokens, fed);
    ASSERT_EQ(trace.rows.size(), fed.size());
    EXPECT_EQ(trace.window, config.windows[layer]);
    EXPECT_EQ(trace.sinks, sinks);

    const uint32_t tokens = uint32_t(fed.size());
    const HeadShares by_hand = softmax_by_hand(model, layer, fed, config.windows[layer]);
    for (uint32_t q = 0; q < tokens; ++q) {
      const AttentionRow& row = trace.rows[q];
      EXPECT_EQ(row.position, q);
      ASSERT_EQ(row.shares.size(), q + 1) << "nothing above the diagonal";
      for (uint32_t k = 0; k <= q; ++k) {
        EXPECT_NEAR(double(row.shares[k]), by_hand[head][q][k], 1e-5) << q << " looks at " << k;
        if (k < row.first) {
          EXPECT_EQ(row.shares[k], 0.0f) << "behind the window";
        }
      }
      if (sinks) {
        EXPECT_LT(row.sum(), 1 - 1e-6);
      } else {
        EXPECT_NEAR(row.sum(), 1, 1e-5);
      }
    }
  }
}

TEST_P(ExplainAttention, PairsAreCountedByWhereTheirKeysComeFrom) {
  BareModel model(golden_folder(GetParam()), kernels_named("auto"), 2);
  const Golden golden = read_golden(GetParam());
  const Config config(GetParam());
  const uint32_t prompt = uint32_t(golden.prompt.size());
  constexpr uint32_t kChunk = 5, kCached = 3;
  for (uint32_t layer = 0; layer < config.windows.size(); ++layer) {
    const AttentionTrace trace = trace_attention(model.engine_model(), in_chunks(kChunk), greedy(golden),
                                                 {.layer = layer, .head = 0, .cached = kCached});
    EXPECT_EQ(trace.cached, kCached);
    EXPECT_EQ(trace.rows.front().position, kCached) << "what is cached is not computed";
    uint32_t begin = kCached;
    for (const AttentionPass& pass : trace.passes) {
      const uint32_t end = begin < prompt ? std::min(begin + kChunk, prompt) : begin + 1;
      uint64_t computed = 0, cached = 0;
      std::vector<bool> read(begin);
      for (uint32_t q = begin; q < end; ++q) {
        for (uint32_t k = 0; k <= q; ++k) {
          if (config.windows[layer] > 0 && k + config.windows[layer] <= q) continue;
          ++(k < begin ? cached : computed);
          if (k < begin) read[k] = true;
        }
      }
      EXPECT_EQ(pass.begin, begin);
      EXPECT_EQ(pass.tokens, end - begin);
      EXPECT_EQ(pass.computed_pairs, computed);
      EXPECT_EQ(pass.cached_pairs, cached);
      EXPECT_EQ(pass.cached_rows, std::ranges::count(read, true));
      begin = end;
    }
    EXPECT_EQ(begin, prompt + kAnswer - 1);
  }
}

TEST_P(ExplainAttention, HeadsOfAGroupReadOneKvHead) {
  BareModel model(golden_folder(GetParam()), kernels_named("auto"), 2);
  const Golden golden = read_golden(GetParam());
  const Config config(GetParam());
  std::vector<uint32_t> seen;
  for (uint32_t head = 0; head < config.heads; ++head) {
    const AttentionTrace trace =
        trace_attention(model.engine_model(), in_chunks(64), greedy(golden), {.head = head});
    EXPECT_EQ(trace.kv_head, head / (config.heads / config.kv_heads));
    EXPECT_EQ(trace.sharing.size(), config.heads / config.kv_heads);
    EXPECT_EQ(std::ranges::count(trace.sharing, head), 1);
    if (trace.sharing.front() == head) seen.insert(seen.end(), trace.sharing.begin(), trace.sharing.end());
  }
  ASSERT_EQ(seen.size(), config.heads);
  for (uint32_t head = 0; head < config.heads; ++head) EXPECT_EQ(seen[head], head);
}

INSTANTIATE_TEST_SUITE_P(Models, ExplainAttention,
                         testing::Values("llama2",    // as many KV heads as heads
                                         "llama3",    // grouped
                                         "gemma2",    // every other layer sees a window; a soft cap
                                         "mistral",   // every layer does
                                         "gpt_oss"),  // sinks
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace quire
