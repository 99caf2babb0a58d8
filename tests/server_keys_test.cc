// Two API keys beside each other: what one can learn of the other, and take from it.
#include <set>

#include "server_keys_fixture.h"

namespace quire {
namespace {

// ---- what another has asked --------------------------------------------------------------------------------------

TEST_F(ServerKeys, APromptCannotBeRecoveredTokenByTokenByLookingItUp) {
  const std::vector<TokenId> prompt = secret();
  answer(kAnn, prompt);
  // As the attack goes: the token that is cached one further than the others is the next of the prompt.
  std::vector<TokenId> known;
  for (size_t position = 0; position < 4; ++position) {
    std::set<int> told;
    for (const TokenId guess : {prompt[position], TokenId(5), TokenId(6)}) {
      std::vector<TokenId> tried(prompt.begin(), prompt.begin() + ptrdiff_t(position));
      tried.push_back(guess);
      tried.push_back(7);
      const Json report = good_as(kBob, "POST", "/kv/lookup", {{"prompt", tried}});
      told.insert(report["cached_tokens"].get<int>());
      EXPECT_EQ(report["why"], "never seen");
      EXPECT_EQ(report["disk_tokens"], 0);
    }
    EXPECT_EQ(told, std::set{0});
  }
  EXPECT_EQ(looked_up(kBob, prompt), 0);
  EXPECT_EQ(looked_up(kAnn, prompt), 99);
}

TEST_F(ServerKeys, WhatOneKeyHasCachedIsNotFoundByAnother) {
  answer(kAnn, secret());
  EXPECT_EQ(cached(answer(kAnn, secret())), 99);
  const Json first = answer(kBob, secret(), {{"quire", true}});
  EXPECT_EQ(cached(first), 0);
  EXPECT_EQ(first["quire"]["cache"]["cached_tokens"], 0);
  EXPECT_EQ(cached(answer(kBob, secret())), 99) << "which is its own by now";
}

TEST_F(ServerKeys, AnswersAreTheSameWhateverTheKey) {
  const Json fields = {{"max_tokens", 30}, {"temperature", 1}, {"seed", 5}};
  EXPECT_EQ(text_of(answer(kAnn, secret(), fields)), text_of(answer(kBob, secret(), fields)));
}

TEST_F(ServerKeys, AnothersRequestCannotBeForkedWhetherItRunsOrHasEnded) {
  const Running running = endless_of_ann();
  const std::string ended = answer(kAnn, secret(60, 1))["id"];
  const Json body = {{"at", 50}, {"max_tokens", 1}};
  for (const std::string& id : {running.id, ended}) {
    expect_unknown("POST", "/requests/", id, "/fork", body);
    EXPECT_EQ(as(kAnn, "POST", "/requests/" + id + "/fork", body).status, 200);
  }
  // A prompt that is too long for it would be told apart, were the request looked for without its owner.
  expect_unknown("POST", "/requests/", running.id, "/fork", {{"at", TestServer::kContext - 1}});
}

TEST_F(ServerKeys, AForkFindsWhatItsRequestHasAndNobodyElseDoes) {
  const std::string id = answer(kAnn, secret(), {{"cache_salt", "salt"}})["id"];
  const Json forked = good_as(kAnn, "POST", "/requests/" + id + "/fork", {{"at", 90}, {"max_tokens", 1}});
  EXPECT_EQ(cached(forked), 89);
  EXPECT_EQ(looked_up(kAnn, secret()), 0);
  const HttpReply refused =
      as(kAnn, "POST", "/requests/" + id + "/fork", {{"at", 90}, {"cache_salt", "other"}});
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(refused.error("param"), "cache_salt");
}

TEST_F(ServerKeys, TheStepsAndTheAttentionOfAnotherAreUnknown) {
  const Running running = endless_of_ann();
  const std::string ended = answer(kAnn, secret(60, 1))["id"];
  for (const std::string& id : {running.id, ended}) {
    expect_unknown("GET", "/requests/", id, "/steps");
    expect_unknown("GET", "/requests/", id, "/attention");
  }
  EXPECT_EQ(as(kAnn, "GET", "/requests/" + ended + "/steps").status, 200);
  EXPECT_EQ(as(kAnn, "GET", "/requests/" + ended + "/attention").status, 200);
}

TEST_F(ServerKeys, AnothersRequestCannotBeCancelled) {
  const Running running = endless_of_ann();
  expect_unknown("DELETE", "/requests/", running.id, "");
  EXPECT_EQ(good_as(kBob, "GET", "/requests")["running"], 1);
  EXPECT_EQ(as(kAnn, "DELETE", "/requests/" + running.id).status, 200);
}

TEST_F(ServerKeys, RequestsAreListedForTheirKeyAndCountedForTheOthers) {
  const Running running = endless_of_ann();
  answer(kAnn, secret(60, 1));
  const std::string own = answer(kBob, secret(60, 2))["id"];
  const Json seen = good_as(kBob, "GET", "/requests");
  EXPECT_EQ(seen["running"], 1);
  ASSERT_EQ(seen["requests"].size(), 1u);
  EXPECT_EQ(seen["requests"][0]["id"], own);
  EXPECT_EQ(seen["requests"][0]["client"], "key 2");
  EXPECT_EQ(seen.dump().find(running.id), std::string::npos);
  EXPECT_EQ(good_as(kAnn, "GET", "/requests")["requests"].size(), 2u);
}

TEST_F(ServerKeys, PagesOfAnotherAreCountedAndNothingIsSaidOfThem) {
  const Running running = endless_of_ann();
  answer(kAnn, secret(70, 1));
  answer(kBob, secret(70, 2));
  const Json seen = good_as(kBob, "GET", "/kv");
  EXPECT_EQ(seen.dump().find(running.id), std::string::npos);
  const Json& group = seen["groups"][0];
  EXPECT_EQ(group["map"].size(), group["held"].get<size_t>() + group["cached"].get<size_t>());
  size_t own = 0, foreign_held = 0, foreign_cached = 0;
  for (const Json& page : group["map"]) {
    if (page["own"] == true) {
      ++own;
      EXPECT_GT(page["tokens"], 0);
      continue;
    }
    ++(page["state"] == "held" ? foreign_held : foreign_cached);
    for (const char* field : {"tokens", "index", "age_ms"}) EXPECT_EQ(page[field], 0) << field;
    EXPECT_LE(page["shares"], 1);
    EXPECT_EQ(page["requests"], Json::array());
    EXPECT_EQ(page["pinned"], false);
  }
  EXPECT_EQ(own, 3u);
  EXPECT_EQ(foreign_held, group["held"].get<size_t>());
  EXPECT_GE(foreign_cached, 3u);
  for (const Json& event : seen["events"]["last"]) EXPECT_TRUE(event["request"].is_string());

  const Json of_ann = good_as(kAnn, "GET", "/kv");
  size_t hers = 0;
  for (const Json& page : of_ann["groups"][0]["map"]) hers += page["requests"] == Json::array({running.id});
  EXPECT_GT(hers, 2u);
}

TEST_F(ServerKeys, WithoutKeysEverybodySeesEverything) {
  serve(TestServer::server_options());
  const Json first = complete({{"max_tokens", 2}, {"ignore_eos", true}}, secret());
  EXPECT_EQ(cached(complete({{"max_tokens", 2}, {"ignore_eos", true}}, secret())), 99);
  const Json seen = good(get("/kv"));
  for (const Json& page : seen["groups"][0]["map"]) {
    EXPECT_FALSE(page.contains("own"));
    EXPECT_GT(page["tokens"], 0);
  }
  EXPECT_FALSE(seen.contains("others"));
  EXPECT_EQ(post("/requests/" + first["id"].get<std::string>() + "/fork", {{"at", 9}}).status, 200);
}

// ---- salts -------------------------------------------------------------------------------------------------------

TEST_F(ServerKeys, KeysThatShareFindEachOthersPrefixesAndNothingElse) {
  options_.service.share_prefixes = true;
  serve(options_);
  const std::string id = answer(kAnn, secret())["id"];
  EXPECT_EQ(looked_up(kBob, secret()), 99);
  EXPECT_EQ(cached(answer(kBob, secret())), 99);
  expect_unknown("GET", "/requests/", id, "/steps");
  for (const Json& page : good_as(kBob, "GET", "/kv")["groups"][0]["map"]) EXPECT_EQ(page["own"], false);
}

TEST_F(ServerKeys, RequestsOfDifferentSaltsShareNothing) {
  answer(kAnn, secret());
  EXPECT_EQ(cached(answer(kAnn, secret(), {{"cache_salt", "a"}})), 0);
  EXPECT_EQ(cached(answer(kAnn, secret(), {{"cache_salt", "a"}})), 99);
  EXPECT_EQ(cached(answer(kAnn, secret(), {{"cache_salt", "b"}})), 0);
  EXPECT_EQ(cached(answer(kBob, secret(), {{"cache_salt", "a"}})), 0) << "a salt is a key's own";
  EXPECT_EQ(looked_up(kAnn, secret(), {{"cache_salt", "a"}}), 99);
  EXPECT_EQ(looked_up(kAnn, secret(), {{"cache_salt", "c"}}), 0);
  EXPECT_EQ(as(kAnn, "POST", "/kv/pin", {{"prompt", secret()}, {"cache_salt", "c"}}).status, 409);
  EXPECT_EQ(as(kAnn, "POST", "/kv/pin", {{"prompt", secret()}, {"cache_salt", "b"}}).status, 200);
}

TEST_F(ServerKeys, ASaltWorksWithoutKeysToo) {
  serve(TestServer::server_options());
  const Json fields = {{"max_tokens", 1}, {"cache_salt", "one"}};
  complete(fields, secret());
  EXPECT_EQ(cached(complete(fields, secret())), 99);
  EXPECT_EQ(cached(complete({{"max_tokens", 1}}, secret())), 0);
  EXPECT_EQ(cached(complete({{"max_tokens", 1}, {"n", 3}, {"cache_salt", "two"}}, secret())), 0);
}

TEST_F(ServerKeys, ASaltThatIsNoTextIsEmptyOrTooLongIsRefused) {
  for (const Json& salt : {Json(5), Json(""), Json(std::string(257, 'x')), Json::array()}) {
    for (const char* target : {"/v1/completions", "/kv/lookup", "/kv/pin"}) {
      const HttpReply reply = as(kAnn, "POST", target, {{"prompt", "Hi"}, {"cache_salt", salt}});
      EXPECT_EQ(reply.status, 400) << target << salt;
      EXPECT_EQ(reply.error("param"), "cache_salt");
    }
  }
  EXPECT_EQ(as(kAnn, "POST", "/kv/lookup", {{"prompt", "Hi"}, {"cache_salt", std::string(256, 'x')}}).status,
            200);
}

// ---- the rest ----------------------------------------------------------------------------------------------------

TEST_F(ServerKeys, WithKeysAPriorityHasToBeAllowed) {
  const auto asked = [&](int priority) {
    return as(kAnn, "POST", "/v1/completions",
              {{"prompt", "Hi"}, {"max_tokens", 1}, {"quire", {{"priority", priority}}}});
  };
  EXPECT_EQ(asked(1).status, 400);
  EXPECT_EQ(asked(1).error("param"), "quire.priority");
  EXPECT_EQ(asked(0).status, 200);
  EXPECT_EQ(asked(-5).status, 200);
  const std::string id = answer(kAnn, secret())["id"];
  EXPECT_EQ(as(kAnn, "POST", "/requests/" + id + "/fork", {{"at", 3}, {"quire", {{"priority", 1}}}}).status,
            400);
  options_.service.max_priority = 10;
  serve(options_);
  EXPECT_EQ(asked(10).status, 200);
  EXPECT_EQ(asked(11).status, 400);
  serve(TestServer::server_options());
  EXPECT_EQ(asked(1000).status, 200);
}

TEST_F(ServerKeys, InspectionCanBeSwitchedOff) {
  options_.service.inspection = false;
  serve(options_);
  const std::string id = answer(kAnn, secret())["id"];
  const std::vector<std::pair<std::string, std::string>> off = {{"GET", "/kv"},
                                                                {"POST", "/kv/lookup"},
                                                                {"GET", "/requests"},
                                                                {"GET", "/requests/" + id + "/steps"},
                                                                {"GET", "/requests/" + id + "/attention"}};
  for (const auto& [method, target] : off) {
    const HttpReply reply = as(kAnn, method, target, {{"prompt", "Hi"}});
    EXPECT_EQ(reply.status, 404) << target;
    EXPECT_EQ(reply.error("code"), "inspection_off");
    EXPECT_NE(reply.body.find("--no-inspection"), std::string::npos);
  }
  EXPECT_EQ(ask("GET", "/kv").status, 401) << "without a key nothing is said";
  for (const char* target : {"/health", "/metrics", "/v1/models", "/"})
    EXPECT_EQ(as(kAnn, "GET", target).status, 200) << target;
  EXPECT_EQ(as(kAnn, "POST", "/requests/" + id + "/fork", {{"at", 3}}).status, 200);
}

TEST_F(ServerKeys, IdsAreOf128BitsAndNoneComesTwice) {
  std::set<std::string> seen;
  for (int i = 0; i < 20; ++i) {
    const std::string id = answer(kAnn, secret(5))["id"];
    EXPECT_EQ(id.size(), std::string("cmpl-").size() + 32);
    EXPECT_TRUE(seen.insert(id).second);
  }
}

TEST_F(ServerKeys, AKeyThatIsGivenTwiceIsOne) {
  options_.service.api_keys = {"key of ann", "key of bob", "key of ann"};
  serve(options_);
  const std::string id = answer(kAnn, secret())["id"];
  EXPECT_EQ(as(kAnn, "GET", "/requests/" + id + "/steps").status, 200);
  EXPECT_EQ(good_as(kAnn, "GET", "/requests")["requests"][0]["client"], "key 1");
}

}  // namespace
}  // namespace quire
