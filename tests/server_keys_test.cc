// Two API keys beside each other: what one can learn of the other, and take from it.
#include <atomic>
#include <filesystem>
#include <fstream>
#include <set>

#include <unistd.h>

#include "server_fixture.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

class ServerKeys : public ServerTest {
 protected:
  ServerKeys() : options_(TestServer::server_options()) {
    options_.service.api_keys = {"key of ann", "key of bob"};
    serve(options_);
  }
  ~ServerKeys() override { fs::remove_all(folder_); }

  static constexpr const char* kAnn = "Authorization: Bearer key of ann\r\n";
  static constexpr const char* kBob = "Authorization: Bearer key of bob\r\n";

  HttpReply as(const char* who, const std::string& method, const std::string& target,
               const Json& body = nullptr) {
    return ask(method, target, body.is_null() ? "" : body.dump(), who);
  }
  Json good_as(const char* who, const std::string& method, const std::string& target,
               const Json& body = nullptr) {
    return good(as(who, method, target, body));
  }
  // A prompt of so many tokens that no other begins like.
  static std::vector<TokenId> secret(uint32_t tokens = 100, uint32_t first = 0) {
    std::vector<TokenId> ids = {40 + first, 1};
    while (ids.size() < tokens) ids.push_back(TokenId(4 + (ids.size() * ids.size() * 7 + first) % 300));
    return ids;
  }
  Json answer(const char* who, const std::vector<TokenId>& prompt, Json fields = Json::object()) {
    fields["prompt"] = prompt;
    fields["ignore_eos"] = true;
    if (!fields.contains("max_tokens")) fields["max_tokens"] = 2;
    return good_as(who, "POST", "/v1/completions", fields);
  }
  static int cached(const Json& answer) {
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"].get<int>();
  }
  int looked_up(const char* who, const std::vector<TokenId>& prompt, Json fields = Json::object()) {
    fields["prompt"] = prompt;
    return good_as(who, "POST", "/kv/lookup", fields)["cached_tokens"].get<int>();
  }
  // One of ann's that runs until it is cancelled; its first token has come.
  Running endless_of_ann() {
    Running running{std::make_unique<HttpClient>(port()), ""};
    const Json body = {{"prompt", secret()},
                       {"stream", true},
                       {"ignore_eos", true},
                       {"max_tokens", TestServer::kContext / 2}};
    running.client->request("POST", "/v1/completions", body.dump(), kAnn);
    running.id = running.client->read_head().header("x-request-id");
    EXPECT_TRUE(running.client->read_event().has_value());
    return running;
  }
  // What is said of another's request is what is said of one that never was, but for its id.
  void expect_unknown(const std::string& method, const std::string& before, const std::string& id,
                      const std::string& after, const Json& body = nullptr) {
    const std::string nothing = "cmpl-00000000000000000000000000000000";
    const HttpReply foreign = as(kBob, method, before + id + after, body);
    const HttpReply unknown = as(kBob, method, before + nothing + after, body);
    EXPECT_EQ(foreign.status, 404) << method << " " << before + id + after << ": " << foreign.body;
    std::string said = foreign.body;
    if (said.find(id) != std::string::npos) said.replace(said.find(id), id.size(), nothing);
    EXPECT_EQ(said, unknown.body);
  }
  void serve_from_folder(const std::string& restore) {
    fs::create_directories(folder_);
    options_.kv_folder = folder_;
    options_.kv_restore = restore;
    serve(options_);
  }

  ServerOptions options_;
  std::string folder_ = testing::TempDir() + "/quire_server_keys_" + std::to_string(::getpid());
};

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

// ---- pins --------------------------------------------------------------------------------------------------------

TEST_F(ServerKeys, APinIsItsKeysAlone) {
  answer(kAnn, secret());
  const Json pinned = good_as(kAnn, "POST", "/kv/pin", {{"prompt", secret()}});
  EXPECT_EQ(pinned["tokens"], 96);
  EXPECT_EQ(as(kBob, "POST", "/kv/pin", {{"prompt", secret()}}).status, 409) << "nothing of it is bob's";
  const std::string path = "/kv/pin/" + std::to_string(pinned["pin"].get<int>());
  EXPECT_EQ(as(kBob, "DELETE", path).status, 404);
  const Json seen = good_as(kBob, "GET", "/kv");
  EXPECT_EQ(seen["pins"], Json::array());
  EXPECT_EQ(seen["others"]["pins"], 1);
  EXPECT_EQ(seen["others"]["pinned_tokens"], 96);
  EXPECT_EQ(good_as(kAnn, "GET", "/kv")["pins"].size(), 1u);
  EXPECT_EQ(as(kAnn, "DELETE", path).status, 200);
}

TEST_F(ServerKeys, AKeyPinsNoMoreThanItsNumberAndItsTokens) {
  options_.service.pins.pins = 2;
  options_.service.pins.tokens = 200;
  serve(options_);
  answer(kAnn, secret(140));
  answer(kBob, secret(140));
  const Json all = {{"prompt", secret(140)}}, little = {{"prompt", secret(40)}};
  EXPECT_EQ(good_as(kAnn, "POST", "/kv/pin", all)["tokens"], 128);
  const HttpReply full = as(kAnn, "POST", "/kv/pin", all);
  EXPECT_EQ(full.status, 429);
  EXPECT_EQ(full.error("code"), "pins_full");
  const Json second = good_as(kAnn, "POST", "/kv/pin", little);
  EXPECT_EQ(as(kAnn, "POST", "/kv/pin", little).status, 429);
  EXPECT_EQ(good_as(kBob, "POST", "/kv/pin", all)["tokens"], 128) << "bob has his own";
  EXPECT_EQ(as(kAnn, "DELETE", "/kv/pin/" + std::to_string(second["pin"].get<int>())).status, 200);
  EXPECT_EQ(as(kAnn, "POST", "/kv/pin", little).status, 200);
}

TEST_F(ServerKeys, AllKeysTogetherPinNoMoreThanHalfThePages) {
  EngineOptions engine = TestServer::engine_options();
  engine.context = 1024;
  engine.kv_bytes = 24 * 32 * 256;  // 24 pages: six for each key
  serve(options_, engine);
  answer(kAnn, secret(230));
  EXPECT_EQ(as(kAnn, "POST", "/kv/pin", {{"prompt", secret(230)}}).status, 429);
  EXPECT_EQ(good_as(kAnn, "POST", "/kv/pin", {{"prompt", secret(200)}})["tokens"], 192);
  EXPECT_EQ(as(kAnn, "POST", "/kv/pin", {{"prompt", secret(33)}}).status, 429);
}

TEST_F(ServerKeys, APinEndsWithItsTime) {
  const auto passed = std::make_shared<std::atomic<int>>(0);  // seconds
  EngineOptions engine = TestServer::engine_options();
  engine.now = [passed] { return Clock::now() + std::chrono::seconds(*passed); };
  serve(options_, engine);
  answer(kAnn, secret());
  const Json body = {{"prompt", secret()}, {"ttl_seconds", 7200}};
  EXPECT_EQ(good_as(kAnn, "POST", "/kv/pin", body)["ttl_seconds"], 7200);
  EXPECT_EQ(good_as(kAnn, "GET", "/kv")["pins"].size(), 1u);
  const auto held = [&] { return good_as(kAnn, "GET", "/kv")["groups"][0]["held"].get<int>(); };
  EXPECT_EQ(held(), 3);
  *passed = 7201;
  EXPECT_EQ(good_as(kAnn, "GET", "/kv")["pins"], Json::array());
  EXPECT_EQ(held(), 0);
  const Json usual = good_as(kAnn, "POST", "/kv/pin", {{"prompt", secret()}});
  EXPECT_EQ(usual["ttl_seconds"], PinLimits::kUsualSeconds);
  EXPECT_GT(good_as(kAnn, "GET", "/kv")["pins"][0]["ttl_seconds"], 0);
  for (const Json& wrong : {Json(0), Json(-1), Json("1"), Json(PinLimits::kMostSeconds + 1)}) {
    const HttpReply refused = as(kAnn, "POST", "/kv/pin", {{"prompt", secret()}, {"ttl_seconds", wrong}});
    EXPECT_EQ(refused.status, 400) << wrong;
    EXPECT_EQ(refused.error("param"), "ttl_seconds");
  }
}

// ---- snapshots ---------------------------------------------------------------------------------------------------

TEST_F(ServerKeys, OnlyTheFirstKeySavesSnapshots) {
  serve_from_folder("");
  answer(kBob, secret());
  const HttpReply refused = as(kBob, "POST", "/kv/save", {{"name", "cache.kv"}});
  EXPECT_EQ(refused.status, 403);
  EXPECT_EQ(refused.error("code"), "not_the_first_key");
  EXPECT_TRUE(fs::is_empty(folder_));
  EXPECT_EQ(as(kAnn, "POST", "/kv/save", {{"name", "cache.kv"}}).status, 200);
}

TEST_F(ServerKeys, AfterARestartEachKeyFindsItsOwnAgainAndNothingOfTheOther) {
  serve_from_folder("");
  answer(kAnn, secret());
  answer(kBob, secret(100, 1));
  answer(kAnn, secret(100, 2), {{"cache_salt", "pepper"}});
  good_as(kAnn, "POST", "/kv/save");
  serve_from_folder("cache.kv");
  EXPECT_EQ(looked_up(kAnn, secret()), 99);
  EXPECT_EQ(looked_up(kBob, secret()), 0);
  EXPECT_EQ(looked_up(kBob, secret(100, 1)), 99);
  EXPECT_EQ(looked_up(kAnn, secret(100, 1)), 0);
  EXPECT_EQ(looked_up(kAnn, secret(100, 2), {{"cache_salt", "pepper"}}), 99);
  EXPECT_EQ(looked_up(kAnn, secret(100, 2)), 0);
  // The order of the keys does not matter, and another key finds nothing.
  options_.service.api_keys = {"key of eve", "key of bob", "key of ann"};
  serve_from_folder("cache.kv");
  EXPECT_EQ(looked_up(kAnn, secret()), 99);
  EXPECT_EQ(looked_up("Authorization: Bearer key of eve\r\n", secret()), 0);
}

TEST_F(ServerKeys, TheFolderKeepsNoKeyAndItsSecretIsForItsOwnerOnly) {
  serve_from_folder("");
  answer(kAnn, secret());
  good_as(kAnn, "POST", "/kv/save");
  size_t files = 0;
  for (const auto& entry : fs::directory_iterator(folder_)) {
    ++files;
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    EXPECT_EQ(bytes.find("key of"), std::string::npos) << entry.path();
    EXPECT_EQ(entry.status().permissions() & (fs::perms::group_all | fs::perms::others_all), fs::perms::none);
  }
  EXPECT_EQ(files, 2u);
}

TEST_F(ServerKeys, WithoutTheSecretOfItsFolderASnapshotIsFoundByNobody) {
  serve_from_folder("");
  answer(kAnn, secret());
  good_as(kAnn, "POST", "/kv/save");
  fs::remove(folder_ + "/.salt_secret");
  serve_from_folder("cache.kv");
  EXPECT_EQ(looked_up(kAnn, secret()), 0);
}

TEST_F(ServerKeys, SnapshotsAreLimitedInNumberAndBytes) {
  options_.snapshots.files = 2;
  serve_from_folder("");
  answer(kAnn, secret(400));
  const uint64_t bytes = good_as(kAnn, "POST", "/kv/save", {{"name", "one"}})["bytes"].get<uint64_t>();
  good_as(kAnn, "POST", "/kv/save", {{"name", "two"}});
  const HttpReply full = as(kAnn, "POST", "/kv/save", {{"name", "three"}});
  EXPECT_EQ(full.status, 409);
  EXPECT_EQ(full.error("code"), "too_many_snapshots");
  good_as(kAnn, "POST", "/kv/save", {{"name", "two"}});  // in place of itself

  options_.snapshots.bytes = bytes + bytes / 2;
  serve_from_folder("one");
  const HttpReply large = as(kAnn, "POST", "/kv/save", {{"name", "two"}});
  EXPECT_EQ(large.status, 500) << large.body;
  EXPECT_NE(large.body.find("does not fit"), std::string::npos);
  EXPECT_EQ(fs::file_size(folder_ + "/two"), bytes) << "the old one is still there";
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
