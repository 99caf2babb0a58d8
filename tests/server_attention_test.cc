// GET /requests/ID/attention: where a head of a request looks, running or ended.
#include <numeric>

#include "server/request_attention.h"
#include "server_fixture.h"

namespace quire {
namespace {

constexpr int kChunk = 64;  // TestServer's

class ServerAttention : public ServerTest {
 protected:
  std::vector<TokenId> prompt(uint32_t first, uint32_t tokens) {
    std::vector<TokenId> ids = {1, 10 + first};
    while (ids.size() < tokens) ids.push_back(TokenId(4 + (ids.size() * 7 + first) % 300));
    return ids;
  }
  std::string path(const std::string& id, const std::string& query = "") {
    return "/requests/" + id + "/attention" + query;
  }
  static double sum(const Json& row) {
    return std::accumulate(row["shares"].begin(), row["shares"].end(), 0.0,
                           [](double total, const Json& share) { return total + share.get<double>(); });
  }
  // Rows follow one another from the first computed token to the last, and each shares out one whole.
  static void check_rows(const Json& told) {
    const int cell = told["cell_tokens"];
    int position = told["cached_tokens"];
    for (const Json& row : told["rows"]) {
      EXPECT_EQ(row["position"], position);
      position += row["tokens"].get<int>();
      EXPECT_EQ(row["shares"].size(), size_t((position - 1) / cell + 1)) << "nothing right of its own token";
      EXPECT_NEAR(sum(row), 1, 0.0005 * double(row["shares"].size()) + 1e-6);
      const Json& pass = told["passes"][row["pass"].get<size_t>()];
      EXPECT_LE(pass["begin"], row["position"]);
      EXPECT_LT(row["position"], pass["begin"].get<int>() + pass["tokens"].get<int>());
    }
    EXPECT_EQ(size_t(position), told["tokens"].size());
  }
};

TEST_F(ServerAttention, ARequestThatEndedIsToldRowByRow) {
  constexpr int kPrompt = 100, kAnswer = 5;
  const Json done = complete({{"max_tokens", kAnswer}, {"ignore_eos", true}}, prompt(1, kPrompt));
  const Json told = good(get(path(done["id"], "?layer=1&head=2")));
  EXPECT_EQ(told["layer"], 1);
  EXPECT_EQ(told["head"], 2);
  EXPECT_EQ(told["prompt_tokens"], kPrompt);
  EXPECT_EQ(told["cell_tokens"], 1);
  EXPECT_EQ(told["tokens"].size(), size_t(kPrompt + kAnswer - 1)) << "the last token was never fed";
  ASSERT_EQ(told["passes"].size(), size_t((kPrompt + kChunk - 1) / kChunk + kAnswer - 1));
  EXPECT_EQ(told["passes"][1]["begin"], kChunk);
  EXPECT_EQ(told["passes"].back()["phase"], "decode");
  EXPECT_EQ(told["passes"].back()["begin"], kPrompt + kAnswer - 2);
  ASSERT_EQ(told["rows"].size(), size_t(kPrompt + kAnswer - 1));
  check_rows(told);
  const Json config = read_json_file(golden_folder("llama3") + "/config.json");
  const int heads = config["num_attention_heads"], kv_heads = config["num_key_value_heads"];
  EXPECT_EQ(told["heads"], heads);
  EXPECT_EQ(told["layers"], config["num_hidden_layers"]);
  EXPECT_EQ(told["sharing"].size(), size_t(heads / kv_heads));
  EXPECT_EQ(told["kv_head"], 2 / (heads / kv_heads));
}

TEST_F(ServerAttention, LookingTwiceSeesTheSameAndOtherHeadsSomethingElse) {
  const Json done = complete({{"max_tokens", 2}, {"ignore_eos", true}}, prompt(2, 40));
  const HttpReply first = get(path(done["id"], "?layer=0&head=0")), again = get(path(done["id"]));
  EXPECT_EQ(first.status, 200);
  EXPECT_EQ(first.body, again.body);
  EXPECT_NE(good(get(path(done["id"], "?layer=0&head=1")))["rows"], first.json()["rows"]);
  const Json state = good(get("/requests"));
  EXPECT_EQ(state["requests"].size(), 1u) << "looks are not requests";
  EXPECT_EQ(good(get("/kv"))["held_bytes"], 0);
}

TEST_F(ServerAttention, WhatCameFromTheCacheHasNoRow) {
  complete({{"max_tokens", 1}}, prompt(3, 100));
  const Json done = complete({{"max_tokens", 2}, {"ignore_eos", true}}, prompt(3, 110));
  const Json told = good(get(path(done["id"])));
  EXPECT_EQ(told["cached_tokens"], 100);
  EXPECT_EQ(told["passes"][0]["begin"], 100);
  EXPECT_EQ(told["rows"].size(), 11u);
  check_rows(told);
}

TEST_F(ServerAttention, ALongTextIsToldInFewerCells) {
  constexpr int kPrompt = 700, kAnswer = 4;
  const Json done = complete({{"max_tokens", kAnswer}, {"ignore_eos", true}}, prompt(4, kPrompt));
  const Json told = good(get(path(done["id"])));
  EXPECT_EQ(told["cell_tokens"], 3);  // 703 tokens in at most 256 cells
  EXPECT_EQ(told["rows"].size(), size_t((kPrompt + 2) / 3 + 2)) << "the answer begins a row of its own";
  check_rows(told);
}

TEST_F(ServerAttention, ARunningRequestGoesOnWhileItIsLookedAt) {
  Running running;
  HttpReply reply;
  do {  // an endless answer may be too long already
    running = start_endless({}, prompt(5, 20));
    reply = get(path(running.id, "?layer=1&head=1"));
  } while (reply.status == 400);
  const Json told = good(reply);
  check_rows(told);
  wait_until("/requests", [&](const Json& state) {
    EXPECT_EQ(state["requests"][0]["id"], running.id);
    EXPECT_TRUE(state["requests"][0]["finish_reason"].is_null());
    return state["requests"][0]["answer_tokens"] > told["tokens"].size();
  });
}

TEST_F(ServerAttention, TextsThatAreTooLongOrWerePrunedAreRefusedWithASentence) {
  const Json longer = complete({{"max_tokens", 1}}, prompt(6, HeadWatch::kMostTokens + 1));
  const HttpReply too_long = get(path(longer["id"]));
  EXPECT_EQ(too_long.status, 400);
  EXPECT_EQ(too_long.json()["error"]["code"], "too_long");
  const Json most = complete({{"max_tokens", 1}}, prompt(7, HeadWatch::kMostTokens));
  const Json told = good(get(path(most["id"])));
  EXPECT_EQ(told["rows"].size(), AttentionGrid::kMostCells);
  check_rows(told);

  const Json pruned =
      complete({{"max_tokens", 2}, {"ignore_eos", true}, {"quire", {{"kv_keep", "50%"}}}}, prompt(8, 200));
  const HttpReply refused = get(path(pruned["id"]));
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(refused.json()["error"]["code"], "pruned");
}

TEST_F(ServerAttention, WhatIsNotThereIsSaidSo) {
  const std::string id = complete({{"max_tokens", 1}})["id"];
  EXPECT_EQ(get(path("cmpl-nothing")).status, 404);
  EXPECT_EQ(get(path(id, "?choice=1")).status, 404);
  EXPECT_EQ(get("/requests//attention").status, 404);
  for (const char* query : {"?layer=99", "?head=99", "?layer=-1", "?layer=x", "?head=", "?head=4294967296",
                            "?layer=4294967295", "?choice=1e9"})
    EXPECT_EQ(get(path(id, query)).status, 400) << query;
  const std::string said = get(path(id, "?layer=99")).json()["error"]["message"];
  EXPECT_NE(said.find("no layer 99"), std::string::npos) << said;
}

TEST_F(ServerAttention, WithKeysOnlyTheOneWhoAskedIsShown) {
  ServerOptions options = TestServer::server_options();
  options.service.api_keys = {"one", "other"};
  serve(options);
  const std::string one = "Authorization: Bearer one\r\n", other = "Authorization: Bearer other\r\n";
  const Json body = {{"prompt", "Once upon a time"}, {"max_tokens", 2}, {"ignore_eos", true}};
  const std::string id = good(ask("POST", "/v1/completions", body.dump(), one))["id"];
  EXPECT_EQ(ask("GET", path(id), "", one).status, 200);
  EXPECT_EQ(ask("GET", path(id), "", other).status, 404);
  EXPECT_EQ(ask("GET", path(id)).status, 401);
}

TEST_F(ServerAttention, LooksStandBehindRequestsAndEndWhenTheirClientsLeave) {
  EngineOptions engine = TestServer::engine_options();
  engine.max_sequences = 1;
  serve(TestServer::server_options(), engine);
  const std::string id = complete({{"max_tokens", 1}})["id"];
  const Running running = start_endless();  // has the only place for as long as it likes
  const auto waiting = [](int count) {
    return [count](const Json& state) { return state["waiting"] == count; };
  };
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 1; i <= 8; ++i) {
    clients.push_back(std::make_unique<HttpClient>(port()));
    clients.back()->request("GET", path(id));
    wait_until("/requests", waiting(i));
  }
  EXPECT_EQ(get(path(id)).status, 429) << "as many as may wait";
  clients.pop_back();
  wait_until("/requests", waiting(7));
  clients.clear();
  const Json state = wait_until("/requests", waiting(0));
  EXPECT_EQ(state["running"], 1) << "the request that was there first goes on";
}

TEST_F(ServerAttention, AKeyThatTakesAllItsLooksLeavesAnotherItsOwn) {
  ServerOptions options = TestServer::server_options();
  options.service.api_keys = {"one", "other"};
  EngineOptions engine = TestServer::engine_options();
  engine.max_sequences = 1;
  serve(options, engine);
  const std::string one = "Authorization: Bearer one\r\n", other = "Authorization: Bearer other\r\n";
  Json body = {{"prompt", "Once upon a time"}, {"max_tokens", 1}, {"ignore_eos", true}};
  const std::string id = good(ask("POST", "/v1/completions", body.dump(), one))["id"];
  const std::string others = good(ask("POST", "/v1/completions", body.dump(), other))["id"];
  body["max_tokens"] = TestServer::kContext / 2;
  body["stream"] = true;
  HttpClient endless(port());  // has the only place for as long as it likes
  endless.request("POST", "/v1/completions", body.dump(), one);
  ASSERT_EQ(endless.read_head().status, 200);
  const auto wait_for = [&](int count) {
    while (good(ask("GET", "/requests", "", one))["waiting"] != count) {
    }
  };
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 1; i <= 8; ++i) {
    clients.push_back(std::make_unique<HttpClient>(port()));
    clients.back()->request("GET", path(id), "", one);
    wait_for(i);
  }
  EXPECT_EQ(ask("GET", path(id), "", one).status, 429);
  clients.push_back(std::make_unique<HttpClient>(port()));
  clients.back()->request("GET", path(others), "", other);
  wait_for(9);
}

// Three tokens of prompt, the first of them cached; a pass that drew two tokens; then a preemption.
TEST(FedText, HasThePassThatComputedEachTokenFirst) {
  const std::vector<TokenId> prompt = {1, 2, 3};
  Answer answer;
  answer.tokens = {10, 11, 12, 13};
  answer.account.cached_tokens = 1;
  answer.account.prefill = {
      {.at_ms = 1, .took_ms = 9, .tokens = 2, .entries_before = 1, .entries_after = 3},
      {.at_ms = 40, .took_ms = 19, .tokens = 6, .entries_before = 0, .entries_after = 6}};
  answer.account.gaps = {{.ms = 10}, {.ms = 0.1f, .same_pass = true}, {.ms = 25}};
  const FedText text = fed_text({CacheSalt{.key = 4}, 0, prompt, answer, {25, 35, 35.1, 60}, {}});
  EXPECT_EQ(text.tokens, (std::vector<TokenId>{1, 2, 3, 10, 11, 12}));
  EXPECT_EQ(text.salt, CacheSalt{.key = 4}) << "it is computed again where its pages are";
  ASSERT_EQ(text.passes.size(), 3u);
  const uint32_t expected[] = {0, 0, 0, 1, 1, 2};  // the first was not computed
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(text.pass_of[i], expected[i]) << i;
  EXPECT_EQ(text.passes[1].begin, 3u);
  EXPECT_EQ(text.passes[1].tokens, 2u);
  EXPECT_EQ(text.passes[2].begin, 0u) << "with the last token all before it were computed again";
}

}  // namespace
}  // namespace quire
