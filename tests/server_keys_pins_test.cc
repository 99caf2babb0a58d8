// Pins with API keys: each has its own, and no more than its share.
#include <atomic>

#include "server_keys_fixture.h"

namespace quire {
namespace {

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
}  // namespace
}  // namespace quire
