// What `quire explain --view attention` shows, against shares computed here from the queries and keys of a model.
#include <cmath>
#include <cstring>

#include <gtest/gtest.h>

#include "backend/cpu/kernel_choice.h"
#include "base/json.h"
#include "engine/window_runner.h"
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

// The shares of all heads of one layer, for all tokens computed in one pass, by the definition.
class SoftmaxByHand : public AttentionWatcher {
 public:
  SoftmaxByHand(uint32_t layer, uint32_t tokens, uint32_t window)
      : layer_(layer), tokens_(tokens), window_(window) {}

  void see(size_t layer, const AttendParams& params) override {
    if (layer != layer_) return;
    const KvLayerShape& shape = params.kv.layer->shape;
    shares.resize(params.heads);
    for (uint32_t head = 0; head < params.heads; ++head) {
      const uint32_t kv_head = head * shape.kv_heads / params.heads;
      for (uint32_t q = 0; q < tokens_; ++q) {
        std::vector<double> row(q + 1);
        double sum = params.sinks ? std::exp(double(params.sinks.vector()[head])) : 0;
        for (uint32_t k = 0; k <= q; ++k) {
          if (window_ > 0 && q - k >= window_) continue;
          std::vector<float> key(shape.key_dim);
          std::memcpy(key.data(), params.kv.key_row(0, kv_head, k), key.size() * sizeof(float));
          double score = 0;
          for (uint32_t d = 0; d < shape.key_dim; ++d)
            score += double(params.query.row(q)[head * shape.key_dim + d]) * double(key[d]);
          score *= double(params.scale);
          const double cap = double(params.soft_cap);
          if (cap > 0) score = cap * std::tanh(score / cap);
          sum += row[k] = std::exp(score);
        }
        for (double& share : row) share /= sum;
        shares[head].push_back(row);
      }
    }
  }

  std::vector<std::vector<std::vector<double>>> shares;  // [head][query][key]

 private:
  const uint32_t layer_, tokens_, window_;
};

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
    SoftmaxByHand by_hand(layer, tokens, config.windows[layer]);
    WindowRunner runner(model.engine_model(), KvFormat::f32, tokens, tokens);
    runner.compute(fed, WindowRunner::Wanted::last_row, &by_hand);
    for (uint32_t q = 0; q < tokens; ++q) {
      const AttentionRow& row = trace.rows[q];
      EXPECT_EQ(row.position, q);
      ASSERT_EQ(row.shares.size(), q + 1) << "nothing above the diagonal";
      for (uint32_t k = 0; k <= q; ++k) {
        EXPECT_NEAR(double(row.shares[k]), by_hand.shares[head][q][k], 1e-5) << q << " looks at " << k;
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
