// `quire explain` as a user meets it: each view as a table, as JSON and as a picture.
#include <gtest/gtest.h>

#include "base/json.h"
#include "cli_fixture.h"

namespace quire {
namespace {

class ExplainCommand : public Cli {
 protected:
  // A view's object; its picture is looked at on the way.
  Json view(const std::string& arguments) const {
    const Json json = quire_json("explain --json --svg " + path("view.svg") + " --view " + arguments);
    const std::string svg = slurp(path("view.svg"));
    EXPECT_TRUE(contains(svg, "</svg>")) << arguments;
    EXPECT_TRUE(contains(svg, "prefers-color-scheme")) << arguments;
    EXPECT_FALSE(contains(svg, "<|")) << "names of tokens are escaped";
    return json;
  }
};

TEST_F(ExplainCommand, StepsHasARowForEveryChunkAndEveryToken) {
  const Json json = view("steps --gen 5 --prefill-chunk 3 'Who are you?'");
  const int prompt = json["prompt_tokens"], chunks = (prompt + 2) / 3;
  ASSERT_EQ(json["passes"].size(), size_t(chunks + 4));
  EXPECT_EQ(json["answer_ids"].size(), 5u);
  EXPECT_EQ(json["entries_left"], prompt + 5 - 1);
  for (int i = 0; i < int(json["passes"].size()); ++i) {
    const Json& pass = json["passes"][size_t(i)];
    const int tokens = int(pass["fed"]["ids"].size());
    EXPECT_EQ(pass["drawn"].is_null(), i + 1 < chunks);
    EXPECT_EQ(pass["rows"], tokens * json["layers"].get<int>());
    EXPECT_EQ(pass["query_heads_computed"], pass["rows"].get<int>() * json["heads"].get<int>());
    EXPECT_EQ(pass["key_heads_computed"], pass["rows"].get<int>() * json["kv_heads"].get<int>());
    EXPECT_EQ(pass["entries_after"], pass["entries_before"].get<int>() + tokens);
  }
  const Json run = quire_json("run --json --temperature 0 -n 5 'Who are you?'");
  EXPECT_EQ(json["answer_ids"], run["token_ids"]);

  const Outcome table = quire("explain --view steps --gen 5 'Who are you?'");
  EXPECT_TRUE(contains(table.out, "5 drawn tokens leave " + std::to_string(prompt) +
                                      " + 5 - 1 = " + std::to_string(prompt + 4) + " entries"))
      << table.out;
  EXPECT_TRUE(contains(table.out, "last row of prefill")) << table.out;
}

TEST_F(ExplainCommand, WhyKvShowsThatAPrefixStaysAndNothingElseDoes) {
  const Json json = view("why-kv 'Who are you?'");
  const size_t tokens = json["prompt_tokens"];
  for (const Json& layer : json["append"]["layers"]) {
    EXPECT_EQ(layer["rows"], tokens);
    EXPECT_EQ(layer["keys_changed"], 0);
    EXPECT_EQ(layer["values_changed"], 0);
  }
  for (const Json& layer : json["change_first"]["layers"]) {
    const bool first = layer["layer"] == 0;
    EXPECT_EQ(layer["rows"], tokens - 1);
    EXPECT_EQ(layer["keys_changed"] == 0, first);
    EXPECT_EQ(layer["values_changed"] == 0, first);
    EXPECT_EQ(layer["largest_key_change"] > 0, !first);
  }
  EXPECT_EQ(quire("explain --view why-kv --kv int8").code, 2);
  EXPECT_TRUE(contains(quire("explain --view why-kv").out, "as a prefix"));
}

TEST_F(ExplainCommand, ChunksReadTheWeightsOnceForEachPass) {
  const Json json = view("chunks -m " + llama_ + " --doc 50 --gen 4 --prefill-chunk 1,7,64");
  const Json config = read_json_file(llama_ + "/config.json");
  const auto number = [&](const char* key) { return config[key].get<double>(); };
  const double attention = number("hidden_size") * number("head_dim") *
                           (2 * number("num_attention_heads") + 2 * number("num_key_value_heads"));
  const double mlp = 3 * number("hidden_size") * number("intermediate_size");
  const double layers = 4 * number("num_hidden_layers") * (attention + mlp);
  const double head = 4 * number("hidden_size") * number("vocab_size");  // for the last token alone
  const double passes[] = {50, 8, 1};
  ASSERT_EQ(json["chunks"].size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(json["chunks"][i]["passes"], passes[i]);
    EXPECT_EQ(json["chunks"][i]["weight_bytes"], passes[i] * layers + head);
    EXPECT_LE(json["chunks"][i]["longest_pass_ms"], json["chunks"][i]["ttft_ms"]);
  }
  EXPECT_EQ(json["same_tokens"], true);
  EXPECT_EQ(json["answer_ids"].size(), 4u);
  EXPECT_TRUE(contains(quire("explain --view chunks -m " + llama_ + " --doc 50").out, "first token"));
}

TEST_F(ExplainCommand, BatchingRunsTheSameRequestsInFourWays) {
  const std::string arguments =
      "batching -m " + llama_ + " --requests 5 --seed 3 --gen 16 --doc 40 --batch 2";
  const Json json = view(arguments);
  ASSERT_EQ(json["requests"].size(), 5u);
  ASSERT_EQ(json["ways"].size(), 4u);
  int tokens = 0;
  for (const Json& request : json["requests"]) tokens += request["answer_tokens"].get<int>();
  for (const Json& way : json["ways"]) {
    EXPECT_EQ(way["answer_tokens"], tokens);
    EXPECT_LE(way["most_running"], 2);
    EXPECT_EQ(way["wait_passes"].size(), 5u);
  }
  EXPECT_LE(json["ways"][0]["passes"], json["ways"][2]["passes"]);
  EXPECT_EQ(view(arguments)["requests"], json["requests"]);
  EXPECT_TRUE(contains(quire("explain --view " + arguments).out, "tokens per second"));
}

TEST_F(ExplainCommand, AttentionIsATriangleAndThenARowForEachToken) {
  const Json json = view("attention --layer 2 --head 5 --gen 4 --prefill-chunk 8 'Who are you?'");
  const size_t prompt = json["prompt_tokens"], tokens = json["tokens"].size();
  EXPECT_EQ(json["heads_sharing"], (std::vector{4, 5, 6, 7}));
  EXPECT_EQ(json["kv_head"], 1);
  ASSERT_EQ(json["rows"].size(), tokens);
  EXPECT_EQ(tokens, prompt + json["answer_ids"].size() - 1);
  for (size_t i = 0; i < tokens; ++i) {
    EXPECT_EQ(json["rows"][i]["shares"].size(), i + 1);
    EXPECT_NEAR(json["rows"][i]["sum"].get<double>(), 1, 1e-5);
  }
  size_t pairs = 0;
  for (const Json& pass : json["passes"])
    pairs += pass["pairs_computed"].get<size_t>() + pass["pairs_from_cache"].get<size_t>();
  EXPECT_EQ(pairs, tokens * (tokens + 1) / 2);
  const Json run = quire_json("run --json --temperature 0 -n 4 'Who are you?'");
  EXPECT_EQ(json["answer_ids"], run["token_ids"]);

  const Outcome table = quire("explain --view attention --layer 2 --head 5 --cached 3 'Who are you?'");
  EXPECT_TRUE(contains(table.out, "query heads 4, 5, 6, 7 share")) << table.out;
  EXPECT_TRUE(contains(table.out, "The first 3 tokens come from the cache")) << table.out;
  // A long prompt is drawn in fewer columns, and the table says so.
  const Json wide = view("attention -m " + llama_ + " --doc 70 --gen 3");
  EXPECT_EQ(wide["rows"].size(), 72u);
  EXPECT_TRUE(contains(quire("explain --view attention --doc 70 --gen 3").out, "A column is 3 tokens"));
  EXPECT_EQ(quire("explain --view attention --layer 99").code, 2);
  EXPECT_EQ(quire("explain --view attention --head 99").code, 2);
  EXPECT_EQ(quire("explain --view attention --cached 999").code, 2);
}

TEST_F(ExplainCommand, ViewsAndListsThatDoNotExistAreWrongUsage) {
  EXPECT_EQ(quire("explain --view nothing").code, 2);
  EXPECT_EQ(quire("explain --view steps --prefill-chunk 1,2").code, 2);
  EXPECT_EQ(quire("explain --view chunks --prefill-chunk 1,x").code, 2);
  EXPECT_EQ(quire("explain --view chunks --prefill-chunk 0").code, 2);
  EXPECT_EQ(quire("explain --view batching --requests 0").code, 2);
}

}  // namespace
}  // namespace quire
