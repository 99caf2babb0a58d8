// GET /requests/ID/steps: the passes of a request, told while it runs and afterwards.
#include <cmath>

#include "server/request_steps.h"
#include "server_fixture.h"

namespace quire {
namespace {

class ServerSteps : public ServerTest {
 protected:
  std::vector<TokenId> prompt(uint32_t first, uint32_t tokens) {
    std::vector<TokenId> ids = {1, 10 + first};
    while (ids.size() < tokens) ids.push_back(TokenId(4 + (ids.size() * 7 + first) % 300));
    return ids;
  }
  Json steps(const std::string& id, const std::string& query = "") {
    return good(get("/requests/" + id + "/steps" + query));
  }
  // Passes are fed what comes next, and add as many entries as they were fed.
  void check_chain(const Json& steps) {
    int entries = steps["cached_tokens"];
    for (const Json& pass : steps["passes"]) {
      EXPECT_EQ(pass["entries_before"], entries);
      EXPECT_EQ(pass["entries_after"], entries + pass["tokens"].get<int>());
      entries = pass["entries_after"];
    }
  }
};

TEST_F(ServerSteps, ARequestHasAPassForEachChunkAndEachToken) {
  constexpr int kPrompt = 150, kChunk = 64, kAnswer = 5;  // TestServer's chunks
  const Json done =
      complete({{"max_tokens", kAnswer}, {"ignore_eos", true}, {"logprobs", 3}, {"temperature", 0}},
               prompt(1, kPrompt));
  const Json told = steps(done["id"]);
  EXPECT_EQ(told["prompt_tokens"], kPrompt);
  EXPECT_EQ(told["skipped"], 0);
  check_chain(told);
  const int chunks = (kPrompt + kChunk - 1) / kChunk;
  ASSERT_EQ(told["passes"].size(), size_t(chunks + kAnswer - 1));
  const Json& logprobs = done["choices"][0]["logprobs"];
  for (int i = 0; i < chunks + kAnswer - 1; ++i) {
    const Json& pass = told["passes"][size_t(i)];
    EXPECT_EQ(pass["phase"], i < chunks ? "prefill" : "decode");
    EXPECT_EQ(pass["tokens"], i + 1 < chunks ? kChunk : i < chunks ? kPrompt - (chunks - 1) * kChunk : 1);
    EXPECT_EQ(pass["draws"], i + 1 < chunks ? 0 : 1);
    if (i + 1 < chunks) continue;
    const Json& drawn = pass["drawn"][0];
    const size_t token = size_t(i + 1 - chunks);
    EXPECT_NEAR(drawn["probability"].get<double>(), std::exp(logprobs["token_logprobs"][token].get<double>()),
                1e-6);
    EXPECT_EQ(drawn["rivals"].size(), 2u)
        << "three were asked for, and the greedy token is the first of them";
    for (const Json& rival : drawn["rivals"]) {
      EXPECT_NE(rival["id"], drawn["id"]);
      EXPECT_LE(rival["probability"], drawn["probability"]);
    }
    if (token > 0) {
      EXPECT_EQ(pass["text"], told["passes"][size_t(i - 1)]["drawn"][0]["text"]) << "what was drawn is fed";
    }
  }
  EXPECT_EQ(told["passes"].back()["entries_after"], kPrompt + kAnswer - 1);
}

TEST_F(ServerSteps, WhatWasCachedIsNotFed) {
  complete({{"max_tokens", 1}}, prompt(2, 100));
  const Json done = complete({{"max_tokens", 2}, {"ignore_eos", true}}, prompt(2, 110));
  const Json told = steps(done["id"]);
  EXPECT_EQ(told["cached_tokens"], 100);
  check_chain(told);
  EXPECT_EQ(told["passes"][0]["tokens"], 10);
  EXPECT_TRUE(told["passes"][0]["drawn"][0]["probability"].is_null()) << "nobody asked for it";
}

TEST_F(ServerSteps, ARunningRequestIsToldAndALongAnswerHasItsLastPasses) {
  const Running running = start_endless({}, prompt(3, 20));
  Json told;
  do {
    told = steps(running.id);
    if (told["skipped"] == 0) check_chain(told);
  } while (told["skipped"] == 0);
  EXPECT_EQ(told["passes"].size(), 256u);
  const int first = told["skipped"].get<int>();
  EXPECT_EQ(told["passes"][0]["entries_before"], 20 + first - 1)
      << "one pass of prefill, then one for each token";
}

TEST_F(ServerSteps, SeveralAnswersHaveTheirOwn) {
  const Json done = complete({{"max_tokens", 4}, {"n", 2}, {"ignore_eos", true}, {"seed", 1}}, prompt(4, 30));
  for (const char* query : {"?choice=0", "?choice=1"}) {
    const Json told = steps(done["id"], query);
    int draws = 0;
    for (const Json& pass : told["passes"]) draws += pass["draws"].get<int>();
    EXPECT_EQ(draws, 4) << query;
  }
  EXPECT_EQ(get("/requests/" + done["id"].get<std::string>() + "/steps?choice=2").status, 404);
}

TEST_F(ServerSteps, WithKeysTheyAreToldToTheOneWhoAsked) {
  ServerOptions options = TestServer::server_options();
  options.service.api_keys = {"one", "other"};
  serve(options);
  const std::string one = "Authorization: Bearer one\r\n", other = "Authorization: Bearer other\r\n";
  const Json body = {{"prompt", "Once upon a time"}, {"max_tokens", 2}, {"ignore_eos", true}};
  const std::string id = good(ask("POST", "/v1/completions", body.dump(), one))["id"];
  const Json own = good(ask("GET", "/requests/" + id + "/steps", "", one));
  EXPECT_EQ(own["passes"][0]["drawn"].size(), 1u);
  EXPECT_TRUE(own["passes"][0]["text"].is_string());
  EXPECT_EQ(ask("GET", "/requests/" + id + "/steps", "", other).status, 404);
  EXPECT_EQ(ask("GET", "/requests/" + id + "/steps").status, 401);
}

TEST_F(ServerSteps, WhatIsNotThereIsSaidSo) {
  EXPECT_EQ(get("/requests/cmpl-nothing/steps").status, 404);
  EXPECT_EQ(get("/requests/cmpl-nothing").status, 404);
  EXPECT_EQ(get("/requests//steps").status, 404);
  EXPECT_EQ(get("/requests/steps").status, 404);
  EXPECT_EQ(get("/requests/x/steps?choice=99999999999999999999").status, 404);
}

// A prompt of three tokens in chunks of two; a pass that drew three tokens at once, two of them guessed; then a preemption,
// after which all is computed anew.
TEST(RequestSteps, GuessesShareAPassAndAPreemptionComputesAgain) {
  const std::vector<TokenId> prompt = {1, 2, 3};
  const std::vector<double> token_ms = {25, 35, 35.1, 35.2, 60};
  Answer answer;
  answer.tokens = {10, 11, 12, 13, 14};
  answer.account.prefill = {
      {.at_ms = 1, .took_ms = 9, .tokens = 2, .entries_before = 0, .entries_after = 2},
      {.at_ms = 11, .took_ms = 13, .tokens = 1, .entries_before = 2, .entries_after = 3},
      {.at_ms = 40, .took_ms = 19, .tokens = 7, .entries_before = 0, .entries_after = 7}};
  answer.account.gaps = {
      {.ms = 10}, {.ms = 0.1f, .same_pass = true}, {.ms = 0.1f, .same_pass = true}, {.ms = 25}};
  const RequestSteps steps = steps_of({{}, 100, prompt, answer, token_ms, {}});
  ASSERT_EQ(steps.passes.size(), 4u);
  const auto tokens_of = [&](size_t pass) {
    std::vector<TokenId> tokens;
    for (const RequestSteps::Drawn& drawn : steps.passes[pass].drawn) tokens.push_back(drawn.token);
    return tokens;
  };
  EXPECT_TRUE(tokens_of(0).empty());
  EXPECT_EQ(tokens_of(1), (std::vector<TokenId>{10}));
  EXPECT_EQ(tokens_of(2), (std::vector<TokenId>{11, 12, 13}));
  EXPECT_EQ(tokens_of(3), (std::vector<TokenId>{14}));
  EXPECT_EQ(steps.passes[0].fed, (std::vector<TokenId>{1, 2}));
  EXPECT_EQ(steps.passes[2].fed, (std::vector<TokenId>{10, 11, 12}));
  EXPECT_EQ(steps.passes[3].fed, (std::vector<TokenId>{1, 2, 3, 10, 11, 12, 13}));
  const uint32_t entries[][2] = {{0, 2}, {2, 3}, {3, 6}, {0, 7}};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(steps.passes[i].prefill, i != 2);
    EXPECT_EQ(steps.passes[i].entries_before, entries[i][0]);
    EXPECT_EQ(steps.passes[i].entries_after, entries[i][1]);
  }
  EXPECT_EQ(steps.passes[0].at_ms, 101);
}

}  // namespace
}  // namespace quire
