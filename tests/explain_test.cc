// What `quire explain` counts, against counts made here from a model's config.json: token by token, with no formula that
// the program uses.
#include <cmath>

#include <gtest/gtest.h>

#include "backend/cpu/kernel_choice.h"
#include "base/error.h"
#include "base/json.h"
#include "explain/kv_rows.h"
#include "explain/passes.h"
#include "explain/phases.h"
#include "golden_model.h"
#include "tensor/float16.h"

namespace quire {
namespace {

BareModel open(const std::string& name) {
  return BareModel(golden_folder(name), kernels_named("auto"), 2);
}

std::vector<TokenId> tokens_from(uint32_t seed, size_t count, uint32_t vocab) {
  std::vector<TokenId> tokens;
  for (uint32_t state = seed * 2654435761u + 12345u; tokens.size() < count;) {
    state = state * 1664525u + 1013904223u;
    tokens.push_back((state >> 8) % vocab);
  }
  return tokens;
}

Request greedy(std::vector<TokenId> prompt, uint32_t answer) {
  Request request;
  request.prompt = std::move(prompt);
  request.sampling.temperature = 0;
  request.max_tokens = answer;
  request.ignore_end = true;
  return request;
}

// A golden's measures as its config.json has them.
struct Shape {
  explicit Shape(const std::string& name) {
    const Json config = read_json_file(golden_folder(name) + "/config.json");
    const auto number = [&](const char* key) { return config.value(key, 0.0); };
    const std::string type = config.value("torch_dtype", config.value("dtype", ""));
    weight_bytes = type == "float32" ? 4 : 2;
    dim = number("hidden_size");
    heads = number("num_attention_heads");
    kv_heads = number("num_key_value_heads");
    head_dim = number("head_dim");
    vocab = number("vocab_size");
    experts = number("num_local_experts");
    experts_used = number("num_experts_per_tok");
    mlp = experts > 0 && config.contains("moe_intermediate_size") ? number("moe_intermediate_size")
                                                                  : number("intermediate_size");
    for (size_t i = 0; i < config["num_hidden_layers"].get<size_t>(); ++i) {
      bool sees_all = !config.contains("sliding_window") || config["sliding_window"].is_null();
      if (config.contains("layer_types") && config["layer_types"][i] == "full_attention") sees_all = true;
      windows.push_back(sees_all ? 1e9 : number("sliding_window"));
    }
  }

  double attention_values() const { return dim * head_dim * (2 * heads + 2 * kv_heads); }  // Q, out, K, V
  double expert_values() const { return 3 * dim * mlp; }                                   // gate, up, down

  double weight_bytes;  // of one value
  double dim, heads, kv_heads, head_dim, vocab, mlp, experts, experts_used;
  std::vector<double> windows;  // by layer
};

struct Count {
  double passes = 0, tokens = 0, pairs = 0, ops = 0, weight_bytes = 0, kv_bytes = 0;
};

// Adds a pass over the positions from `begin` to before `end`; the cache is f16.
void count_pass(const Shape& shape, uint32_t begin, uint32_t end, bool draws, Count& count) {
  ++count.passes;
  for (uint32_t position = begin; position < end; ++position) {
    ++count.tokens;
    count.pairs += position + 1;
    for (double window : shape.windows) {
      count.ops += 2 * shape.attention_values();
      count.ops += shape.experts > 0
                       ? 2 * (shape.dim * shape.experts + shape.experts_used * shape.expert_values())
                       : 2 * shape.expert_values();
      const double seen = std::min(position + 1.0, window);
      count.ops += shape.heads * seen * (2 * shape.head_dim + 2 * shape.head_dim);  // scores, and their sums
    }
  }
  for (double window : shape.windows) {
    count.weight_bytes += shape.weight_bytes * shape.attention_values();
    if (shape.experts > 0) {
      // Each token leaves an expert alone with this probability; what is read is the mean.
      const double missed = std::pow(1 - shape.experts_used / shape.experts, end - begin);
      count.weight_bytes += shape.weight_bytes * (shape.dim * shape.experts +
                                                  shape.experts * (1 - missed) * shape.expert_values());
    } else {
      count.weight_bytes += shape.weight_bytes * shape.expert_values();
    }
    for (uint32_t row = 0; row < end; ++row) {
      if (row + window > begin)
        count.kv_bytes += 2 * shape.kv_heads * shape.head_dim * 2;  // K and V, two bytes
    }
  }
  if (draws) {
    count.ops += 2 * shape.dim * shape.vocab;
    count.weight_bytes += shape.weight_bytes * shape.dim * shape.vocab;
  }
}

void expect_figures(const PhaseFigures& figures, const Count& count) {
  EXPECT_EQ(figures.passes, count.passes);
  EXPECT_EQ(figures.tokens, count.tokens);
  EXPECT_EQ(figures.pairs, count.pairs);
  EXPECT_DOUBLE_EQ(figures.cost.ops(), count.ops);
  EXPECT_NEAR(figures.cost.weight_bytes, count.weight_bytes, 1e-9 * count.weight_bytes);
  EXPECT_DOUBLE_EQ(figures.cost.kv_bytes, count.kv_bytes);
}

class ExplainFigures : public testing::TestWithParam<const char*> {};

TEST_P(ExplainFigures, OfPhasesAreWhatTheModelsShapeSays) {
  constexpr uint32_t kPrompt = 45, kAnswer = 9, kChunk = 20;
  BareModel model = open(GetParam());
  const Shape shape(GetParam());
  const Request request = greedy(tokens_from(3, kPrompt, model.spec.vocab), kAnswer);

  const WayFigures on = run_way(model.engine_model(), {.prefill_chunk = kChunk}, request);
  Count prefill, decode;
  for (uint32_t begin = 0; begin < kPrompt; begin += kChunk)
    count_pass(shape, begin, std::min(begin + kChunk, kPrompt), begin + kChunk >= kPrompt, prefill);
  for (uint32_t fed = 0; fed + 1 < kAnswer; ++fed)
    count_pass(shape, kPrompt + fed, kPrompt + fed + 1, true, decode);
  expect_figures(on.prefill, prefill);
  expect_figures(on.decode, decode);
  EXPECT_EQ(on.prefill.entries, kPrompt);
  EXPECT_EQ(on.decode.entries, kPrompt + kAnswer - 1);

  Count first, later;
  count_pass(shape, 0, kPrompt, true, first);
  for (uint32_t known = kPrompt + 1; known < kPrompt + kAnswer; ++known)
    count_pass(shape, 0, known, true, later);
  // Run to the end, and cut short so that most of it is predicted.
  for (double most_seconds : {0.0, 1e-9}) {
    const WayFigures off = run_way(model.engine_model(), {.prefill_chunk = kChunk, .kv_cache = false},
                                   request, {.most_seconds = most_seconds});
    expect_figures(off.prefill, first);
    expect_figures(off.decode, later);
    EXPECT_EQ(off.decode.entries, 0u);
    EXPECT_EQ(off.predicted_seconds > 0, most_seconds > 0);
    EXPECT_NO_THROW(check_same_tokens(on, off, "no cache"));
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, ExplainFigures,
                         testing::Values("llama2",     // as many KV heads as heads
                                         "llama3",     // grouped
                                         "gemma2",     // every other layer sees a window
                                         "mistral",    // every layer does
                                         "qwen3_moe",  // experts
                                         "mixtral"),
                         [](const auto& info) { return std::string(info.param); });

TEST(ExplainPhases, ADocumentOf2000TokensAndAnAnswerOf500) {
  BareModel model = open("llama3");
  const Request request = greedy(tokens_from(1, 2000, model.spec.vocab), 500);
  const WayFigures on = run_way(model.engine_model(), {}, request);
  const WayFigures off = run_way(model.engine_model(), {.kv_cache = false}, request, {.most_seconds = 1e-9});
  uint64_t without = 0;
  for (uint64_t known = 2000; known < 2500; ++known) without += known;
  EXPECT_EQ(without, 1'124'750u);
  EXPECT_EQ(on.computed_tokens(), 2499);
  EXPECT_EQ(off.computed_tokens(), double(without));
}

TEST(ExplainPhases, OtherTokensAreABugAndSaidSo) {
  WayFigures a, b;
  a.tokens = {1, 2, 3};
  b.tokens = {1, 2};
  EXPECT_NO_THROW(check_same_tokens(a, b, "this"));
  b.tokens = {1, 3};
  EXPECT_THROW(check_same_tokens(a, b, "this"), Error);
}

TEST(ExplainSteps, EveryPassFeedsWhatIsKnownAndTheFirstTokenIsPrefills) {
  BareModel model(golden_folder("llama3"), kernels_named("exact"), 2);
  const Golden golden = read_golden("llama3");
  const uint32_t prompt = uint32_t(golden.prompt.size()), answer = 6, chunk = 7;
  const PassTrace trace =
      trace_passes(model.engine_model(), {.prefill_chunk = chunk, .kv_formats = KvFormat::f32},
                   greedy(golden.prompt, answer), 3);

  const uint32_t chunks = (prompt + chunk - 1) / chunk;
  ASSERT_EQ(trace.passes.size(), chunks + answer - 1);
  std::vector<TokenId> fed;
  for (size_t i = 0; i < trace.passes.size(); ++i) {
    const Pass& pass = trace.passes[i];
    EXPECT_EQ(pass.entries_before, fed.size());
    fed.insert(fed.end(), pass.fed.begin(), pass.fed.end());
    EXPECT_EQ(pass.entries_after, fed.size());
    EXPECT_EQ(pass.drawn.has_value(), i + 1 >= chunks);
    if (i >= chunks) {
      EXPECT_EQ(pass.fed, std::vector{trace.passes[i - 1].drawn->token});
    }
  }
  std::vector<TokenId> expected = golden.prompt;
  expected.insert(expected.end(), golden.greedy.begin(), golden.greedy.begin() + answer - 1);
  EXPECT_EQ(fed, expected);
  EXPECT_EQ(trace.entries_left(), prompt + answer - 1);

  // The probabilities are those of the last row of the prompt, as another program computed it.
  const std::span<const float> row(golden.logits.data() + (prompt - 1) * golden.vocab, golden.vocab);
  double sum = 0;
  for (float logit : row) sum += std::exp(double(logit));
  const Pass::Draw& first = *trace.passes[chunks - 1].drawn;
  EXPECT_EQ(first.token, golden.greedy[0]);
  EXPECT_NEAR(first.probability, std::exp(double(row[first.token])) / sum, 1e-4);
  ASSERT_EQ(first.rivals.size(), 3u);
  for (const TokenLogprob& rival : first.rivals) {
    EXPECT_NE(rival.token, first.token);
    EXPECT_NEAR(std::exp(double(rival.logprob)), std::exp(double(row[rival.token])) / sum, 1e-4);
  }
}

class ExplainWhyKv : public testing::TestWithParam<std::pair<const char*, KvFormat>> {};

TEST_P(ExplainWhyKv, WhatFollowsChangesNoRowAndWhatLeadsChangesAllButTheFirstLayers) {
  const auto [name, format] = GetParam();
  constexpr uint32_t kTokens = 70;
  BareModel model = open(name);
  const CacheProof proof =
      prove_cache(model.engine_model(), format, tokens_from(5, kTokens, model.spec.vocab));
  EXPECT_NE(proof.replaced, proof.replacement);
  const std::vector<double> windows = Shape(name).windows;
  ASSERT_EQ(proof.after_append.layers(), windows.size());
  double reach = 0;  // the last position that the change of the first token has come to
  for (uint32_t i = 0; i < windows.size(); ++i) {
    const RowChanges::Layer appended = proof.after_append.layer(i), changed = proof.after_change.layer(i);
    EXPECT_EQ(appended.rows, kTokens);
    EXPECT_EQ(appended.keys_changed + appended.values_changed, 0u) << "layer " << i;
    EXPECT_EQ(changed.rows, kTokens - 1);
    const uint32_t reached = uint32_t(std::min(reach, kTokens - 1.0));
    // Few bits may hide a small change, but nothing may change beyond the reach.
    for (uint32_t row = reached; row < kTokens - 1; ++row) {
      EXPECT_FALSE(proof.after_change.key[i][row].changed) << "layer " << i << ", token " << row + 1;
      EXPECT_FALSE(proof.after_change.value[i][row].changed) << "layer " << i << ", token " << row + 1;
    }
    EXPECT_LE(changed.keys_changed, reached);
    EXPECT_GE(changed.keys_changed, reached * 3 / 4);
    EXPECT_GE(changed.values_changed, reached * 3 / 4);
    EXPECT_EQ(changed.largest_key > 0, reached > 0);
    reach = std::min(1e6, reach + windows[i] - 1);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, ExplainWhyKv,
    testing::Values(std::pair("llama3", KvFormat::f32), std::pair("llama3", KvFormat::f16),
                    std::pair("mistral", KvFormat::f32), std::pair("gemma2", KvFormat::f32),
                    std::pair("qwen3_moe", KvFormat::bf16)),
    [](const auto& info) {
      return std::string(info.param.first) + "_" + std::string(quire::name(info.param.second));
    });

TEST(ExplainKvRows, ARowsChangeIsTheLengthOfTheDifference) {
  const float a[] = {3, 0, 4}, b[] = {3, 1, 4};
  const RowChange change =
      compare_rows(KvFormat::f32, std::as_bytes(std::span(a)), std::as_bytes(std::span(b)));
  EXPECT_TRUE(change.changed);
  EXPECT_DOUBLE_EQ(change.relative, 0.2);
  EXPECT_FALSE(compare_rows(KvFormat::f32, std::as_bytes(std::span(a)), std::as_bytes(std::span(a))).changed);
  const uint16_t c[] = {f32_to_f16(2), f32_to_f16(0)}, d[] = {f32_to_f16(2), f32_to_f16(-1)};
  EXPECT_DOUBLE_EQ(
      compare_rows(KvFormat::f16, std::as_bytes(std::span(c)), std::as_bytes(std::span(d))).relative, 0.5);
}

}  // namespace
}  // namespace quire
