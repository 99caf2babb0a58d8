// Clients that break off, stall, lie or send too much, and a server that is told to stop: nobody else notices, and
// nothing is left of them.
#include <csignal>

#include <gtest/gtest.h>

#include "golden_model.h"
#include "server_in_process.h"

namespace quire {
namespace {

using std::chrono::milliseconds;

constexpr uint32_t kContext = 32768, kEndless = 30000;  // tokens; nobody waits for the end of such an answer
constexpr uint32_t kOpenAnswers = 12;

const LoadedModel& tiny_model() {
  static const LoadedModel model(golden_folder("llama3"), {.context = kContext, .threads = 1});
  return model;
}

// For the answers that are expected: a model computes for one engine at a time.
const LoadedModel& oracle() {
  static const LoadedModel model(golden_folder("llama3"), {.context = kContext, .threads = 1});
  return model;
}

class ServerFaults : public testing::Test {
 protected:
  ServerFaults() {
    options_.service.limits.open_answers = kOpenAnswers;
    engine_ = {.context = kContext, .max_sequences = 4, .prefill_chunk = 64};
    engine_.kv_bytes = size_t(64) << 20;
  }
  // What was done to the server is over: nothing is held or counted, and it answers as ever.
  void TearDown() override {
    if (!server_) return;
    wait_until([&] {
      const Json requests = server_->get("/requests").json();
      return requests["running"] == 0 && requests["waiting"] == 0 && server_->held_pages() == 0;
    });
    // As many answers as may be open at all: one that is still counted leaves no room for them.
    Json last = question("after all", 5);
    last["n"] = kOpenAnswers;
    RawResponse response;
    wait_until([&] { return (response = server_->complete(last)).status != 429; });
    ASSERT_EQ(response.status, 200) << response.body;
    EXPECT_EQ(response.json()["choices"][0]["text"], expected("after all", 5));
    EXPECT_EQ(server_->held_pages(), 0u);
    server_->stop();
  }

  ServerInProcess& start() {
    server_ = std::make_unique<ServerInProcess>(tiny_model(), engine_, options_);
    return *server_;
  }

  static Json question(const std::string& prompt, uint32_t tokens) {
    return {
        {"prompt", prompt}, {"max_tokens", tokens}, {"seed", 7}, {"temperature", 1}, {"ignore_eos", true}};
  }
  static Json streamed(const std::string& prompt, uint32_t tokens) {
    Json ask = question(prompt, tokens);
    ask["stream"] = true;
    return ask;
  }
  RawClient asking(const Json& body, int receive_bytes = 0) const {
    RawClient client(server_->port(), receive_bytes);
    client.ask("POST", "/v1/completions", body.dump());
    return client;
  }
  // One that asks for an endless stream and has read its beginning.
  RawClient listening(const std::string& prompt) const {
    RawClient client = asking(streamed(prompt, kEndless));
    const auto head = client.read_head();
    EXPECT_TRUE(head && head->status == 200);
    for (int parts = 0; parts < 3; ++parts) EXPECT_TRUE(client.read_part());
    return client;
  }
  // The answer of an engine that nobody else uses.
  static std::string expected(const std::string& prompt, uint32_t tokens) {
    Engine engine(oracle().engine_model(), {.context = 1024, .prefill_chunk = 64});
    Request request;
    request.prompt = oracle().text().tokenizer.encode(prompt);
    request.sampling = oracle().text().sampling_defaults;
    request.sampling.temperature = 1;
    request.sampling.seed = 7;
    request.ignore_end = true;
    request.max_tokens = tokens;
    return engine.run(request).text;
  }
  void expect_right_answer(RawClient& client, const std::string& prompt, uint32_t tokens) const {
    const auto response = client.read();
    ASSERT_TRUE(response) << prompt;
    ASSERT_EQ(response->status, 200) << response->body;
    if (response->header("content-type") != "text/event-stream") {
      EXPECT_EQ(response->json()["choices"][0]["text"], expected(prompt, tokens));
      return;
    }
    StreamText stream = read_events(response->body);
    EXPECT_TRUE(stream.done);
    EXPECT_EQ(stream.finish[0], "length");
    EXPECT_EQ(stream.texts[0], expected(prompt, tokens));
  }
  double cancelled() const { return server_->metric("quire_requests_cancelled_total"); }

  ServerOptions options_;
  EngineOptions engine_;
  std::unique_ptr<ServerInProcess> server_;
};

// ---- clients that leave ------------------------------------------------------------------------------------------

enum class Leave { reset, close };

class ServerFaultsLeaving : public ServerFaults, public testing::WithParamInterface<Leave> {
 protected:
  static void leave(RawClient& client) { GetParam() == Leave::reset ? client.reset() : client.close(); }
};

TEST_P(ServerFaultsLeaving, AStreamIsCancelledAndTheOthersGetTheirAnswers) {
  start();
  std::vector<RawClient> leaving, staying;
  for (int i = 0; i < 3; ++i) {
    leaving.push_back(listening("leaving " + std::to_string(i)));
    staying.push_back(asking(streamed("staying " + std::to_string(i), 60)));
  }
  for (RawClient& client : leaving) leave(client);
  for (int i = 0; i < 3; ++i) expect_right_answer(staying[size_t(i)], "staying " + std::to_string(i), 60);
  wait_until([&] { return cancelled() == 3; });
}

TEST_P(ServerFaultsLeaving, OneThatWaitsForAWholeAnswerOrForItsTurnIsCancelled) {
  start();
  std::vector<RawClient> clients;
  for (int i = 0; i < 8; ++i)  // twice as many as may run
    clients.push_back(asking(question("whole " + std::to_string(i), kEndless)));
  wait_until([&] {
    const Json requests = server_->get("/requests").json();
    return requests["running"] == 4 && requests["waiting"] == 4;
  });
  for (RawClient& client : clients) leave(client);
  wait_until([&] { return cancelled() == 8; });
}

TEST_P(ServerFaultsLeaving, OneThatHasSentMoreThanItsRequestIsCancelledToo) {
  start();
  RawClient client = asking(question("more", kEndless));
  wait_until([&] { return server_->get("/requests").json()["running"] == 1; });
  client.send("\r\n");
  EXPECT_EQ(server_->get("/health").status, 200);  // by now it has seen them
  leave(client);
  wait_until([&] { return cancelled() == 1; });
}

TEST_P(ServerFaultsLeaving, OneThatLeavesInTheMiddleOfItsRequestHarmsNobody) {
  start();
  const std::string whole =
      RawClient::request("POST", "/v1/completions", question("cut off", kEndless).dump());
  for (size_t size : {size_t(1), size_t(20), whole.find("\r\n\r\n") + 4, whole.size() - 1}) {
    RawClient client(server_->port());
    client.send(whole.substr(0, size));
    leave(client);
  }
  RawClient good = asking(question("good", 20));
  expect_right_answer(good, "good", 20);
  EXPECT_EQ(cancelled(), 0);
}

INSTANTIATE_TEST_SUITE_P(By, ServerFaultsLeaving, testing::Values(Leave::reset, Leave::close),
                         [](const auto& info) { return info.param == Leave::reset ? "Reset" : "Close"; });

TEST_F(ServerFaults, ARequestThatFollowsEarlyIsAnsweredAfterTheFirst) {
  start();
  RawClient client(server_->port());
  std::string all;
  for (int i = 0; i < 4; ++i) {
    Json ask = question("turn " + std::to_string(i), 30);
    if (i >= 2) ask["metadata"] = std::string(100'000, 'm');  // more than is taken early
    all += RawClient::request("POST", "/v1/completions", ask.dump());
  }
  client.send(all);
  for (int i = 0; i < 4; ++i) expect_right_answer(client, "turn " + std::to_string(i), 30);
}

// ---- clients that stall ------------------------------------------------------------------------------------------

TEST_F(ServerFaults, AReaderThatStopsIsCutOffAndItsAnswerCancelled) {
  options_.http.write_time = milliseconds(300);
  start();
  Json much = streamed("stalled", kEndless);
  much["logprobs"] = 20;  // events of kilobytes: they soon fill what the system keeps for a reader
  RawClient stalled = asking(much, 4096);
  RawClient good = asking(streamed("good", 100));
  expect_right_answer(good, "good", 100);
  wait_until([&] { return cancelled() == 1; });
}

TEST_F(ServerFaults, AReaderThatTakesAnythingThatIsNoAnswerAndStopsIsCutOff) {
  options_.http.write_time = milliseconds(200);
  start();
  RawClient stalled(server_->port(), 4096);
  std::string all;
  for (int i = 0; i < 2000; ++i) all += RawClient::request("GET", "/metrics");
  stalled.send(all);
  wait_until([&] { return server_->metric("quire_connections") == 1; });  // the one that asks
}

TEST_F(ServerFaults, AReaderThatIsSlowIsServedToTheEnd) {
  options_.http.write_time = milliseconds(400);
  start();
  std::string body = "{\"tokens\":[5";
  for (int i = 1; i < 2'000'000; ++i) body += ",5";
  RawClient slow(server_->port(), 256 << 10);
  slow.ask("POST", "/detokenize", body + "]}", "Connection: close\r\n");
  const auto head = slow.read_head();
  ASSERT_TRUE(head);
  const size_t size = std::stoul(head->header("content-length"));
  ASSERT_GT(size, size_t(4) << 20);
  // All in all it takes several times the write time, but never so long without taking something.
  std::string bytes(size / 24, '\0');
  size_t taken = 0;
  while (true) {
    const ssize_t count = ::recv(slow.socket(), bytes.data(), bytes.size(), MSG_WAITALL);
    if (count <= 0) break;
    taken += size_t(count);
    std::this_thread::sleep_for(milliseconds(60));
  }
  EXPECT_GE(taken + 16384, size);  // the first of them came with the head
}

TEST_F(ServerFaults, HeadersThatTrickleInAreCutOffWhileOthersAreServed) {
  options_.http.header_time = milliseconds(150);
  start();
  RawClient slow(server_->port());
  slow.send("GET /health HTTP/1.1\r\nX-Slow: ");
  size_t sent = 0;
  while (slow.send("a")) {
    EXPECT_EQ(server_->get("/health").status, 200);
    ASSERT_LT(++sent, options_.http.header_bytes);
  }
}

TEST_F(ServerFaults, ABodyThatTricklesInIsCutOffWhileOthersAreServed) {
  options_.http.body_time = milliseconds(150);
  start();
  RawClient slow(server_->port());
  constexpr size_t kLength = 1 << 20;
  slow.send(fmt::format("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", kLength));
  size_t sent = 0;
  while (slow.send("a")) {
    EXPECT_EQ(server_->get("/health").status, 200);
    ASSERT_LT(++sent, kLength);
  }
}

TEST_F(ServerFaults, AConnectionThatSaysNothingIsClosedAfterTheIdleTime) {
  options_.http.idle_time = milliseconds(100);
  start();
  RawClient fresh(server_->port()), used(server_->port());
  used.ask("GET", "/health");
  EXPECT_TRUE(used.read());
  EXPECT_TRUE(fresh.closed());
  EXPECT_TRUE(used.closed());
}

// ---- requests that are wrong ---------------------------------------------------------------------------------------

TEST_F(ServerFaults, WhatIsNotHttpIsRefused) {
  start();
  const std::string_view wrong[] = {
      "hello\r\n\r\n",
      "GET / HTTP/9.9\r\nHost: x\r\n\r\n",
      "GET /\r\n\r\n",
      "GET / HTTP/1.1\r\nHost: x\r\nno colon\r\n\r\n",
      "GET / HTTP/1.1\r\nHost: x\r\nName : value\r\n\r\n",
      std::string_view("GET /\0 HTTP/1.1\r\n\r\n", 19),
      "\x16\x03\x01\x02\x01\x01\xfc\x03\x03 a TLS hello\r\n\r\n",
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n{}",
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999999\r\n\r\n{}",
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{} ",
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n{}\r\n",
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}garbage\r\n",
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: "
      "chunked\r\n\r\nffffffffffffffffff\r\n{}",
  };
  for (const std::string_view bytes : wrong) {
    RawClient client(server_->port());
    client.send(bytes);
    const auto response = client.read();
    ASSERT_TRUE(response) << bytes;
    EXPECT_EQ(response->status, 400) << bytes;
    EXPECT_EQ(response->json()["error"]["type"], "invalid_request_error");
    EXPECT_TRUE(client.closed());
  }
}

TEST_F(ServerFaults, APathThatNobodyKnowsIsNotFound) {
  start();
  for (const char* target : {"//", "/../../etc/passwd", "/http://elsewhere/", "/%00", "/kv/pin/"}) {
    for (const char* method : {"GET", "HEAD", "POST", "DELETE", "OPTIONS", "BREW"}) {
      RawClient client(server_->port());
      client.ask(method, target);
      const auto response = client.read_head();
      ASSERT_TRUE(response) << method << " " << target;
      EXPECT_TRUE(response->status == 404 || response->status == 405) << method << " " << target;
    }
  }
}

TEST_F(ServerFaults, WhatIsTooLargeIsRefusedAndTheClientIsTold) {
  options_.http.body_bytes = 100'000;
  start();
  const std::string head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\n";
  const auto status_of = [&](const std::string& bytes) {
    RawClient client(server_->port());
    client.send(bytes);  // all of it, whether the server wants it or not
    const auto response = client.read();
    return response ? response->status : 0;
  };
  EXPECT_EQ(status_of("GET / HTTP/1.1\r\nX-Long: " + std::string(1 << 20, 'a') + "\r\n\r\n"), 431);
  std::string many = "GET / HTTP/1.1\r\n";
  for (int i = 0; i < 20000; ++i) many += fmt::format("X-{}: a\r\n", i);
  EXPECT_EQ(status_of(many + "\r\n"), 431);
  EXPECT_EQ(status_of("GET /" + std::string(1 << 20, 'a') + " HTTP/1.1\r\n\r\n"), 431);
  const std::string body(100'001, ' ');
  EXPECT_EQ(status_of(head + "Content-Length: 100001\r\n\r\n" + body), 413);
  EXPECT_EQ(status_of(head + "Content-Length: 100001\r\nExpect: 100-continue\r\n\r\n"), 413);
  std::string chunks = head + "Transfer-Encoding: chunked\r\n\r\n";
  for (int i = 0; i < 101; ++i) chunks += "3e8\r\n" + std::string(1000, ' ') + "\r\n";
  EXPECT_EQ(status_of(chunks + "0\r\n\r\n"), 413);
}

TEST_F(ServerFaults, ChunksWithEndlessExtensionsOrTrailersAreRefused) {
  start();
  const std::string head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (const char* start : {"1;", "0\r\nX-Trailer: "}) {
    RawClient client(server_->port());
    client.send(head + start);
    const std::string more(64 << 10, 'a');
    for (int i = 0; i < 128 && !client.readable(); ++i) client.send(more);
    EXPECT_TRUE(client.readable()) << "eight megabytes were taken";
    if (!client.readable()) continue;
    const auto response = client.read();
    EXPECT_TRUE(response && response->status == 431) << start;
  }
}

TEST_F(ServerFaults, BodiesThatMakeNoSenseAreRefused) {
  start();
  std::string keys = "{\"prompt\":\"a\"", numbers = "{\"prompt\":[1";
  for (int i = 0; i < 300'000; ++i) keys += fmt::format(",\"{}\":0", i);
  for (int i = 0; i < 1'000'000; ++i) numbers += ",1";
  const std::string wrong[] = {
      "",
      "null",
      "[]",
      "\"text\"",
      "{",
      "{\"prompt\":\"a\"} {}",
      "{\"prompt\":\"\xff\xfe\"}",
      "{\"prompt\":\"\xed\xa0\x80\"}",
      "{\"prompt\":\"\\ud800\"}",
      std::string("{\"prompt\":\"\0\"}", 14),
      "{\"prompt\":" + std::string(10'000, '[') + std::string(10'000, ']') + "}",
      std::string(10'000, '['),
      "{\"a\":" + std::string(1'000'000, '['),
      "{\"prompt\":\"a\",\"max_tokens\":1e400}",
      "{\"prompt\":\"a\",\"max_tokens\":99999999999999999999}",
      "{\"prompt\":\"a\",\"max_tokens\":" + std::string(100'000, '9') + "}",
      "{\"prompt\":\"a\",\"temperature\":-1e308}",
      "{\"prompt\":\"a\",\"n\":4294967297}",
      "{\"prompt\":\"a\",\"seed\":1e300}",
      "{\"prompt\":[-1]}",
      "{\"prompt\":[4294967296]}",
      "{\"prompt\":[1.5]}",
      "{\"prompt\":[]}",
      "{\"prompt\":[[]]}",
      "{\"prompt\":[[1],\"a\",{}]}",
      numbers + "]}",
      keys + "}",
      "{\"prompt\":\"a\",\"user\":\"" + std::string(1 << 20, 'u') + "\"}",
      "{\"prompt\":\"a\",\"stop\":[" + std::string(100'000, ' ') + "]}}",
      "{\"prompt\":\"a\",\"stop\":[\"b\",\"" + std::string(100'000, 'a') + "\"]}",
      "{\"prompt\":\"a\",\"logit_bias\":{\"99999999999\":1}}",
  };
  RawClient client(server_->port());  // none of it costs the connection
  for (const std::string& body : wrong) {
    ASSERT_TRUE(client.ask("POST", "/v1/completions", body)) << body.substr(0, 80);
    const auto response = client.read();
    ASSERT_TRUE(response) << body.substr(0, 80);
    EXPECT_EQ(response->status, 400) << body.substr(0, 80) << response->body.substr(0, 200);
    EXPECT_EQ(response->json()["error"]["type"], "invalid_request_error");
    EXPECT_LT(response->body.size(), 1000u) << body.substr(0, 80);
  }
}

TEST_F(ServerFaults, ABodyLongerThanItSaysIsAnsweredAndTheRestRefused) {
  start();
  RawClient client(server_->port());
  client.send(RawClient::request("POST", "/v1/completions", question("short", 10).dump()) +
              "the rest\r\n\r\n");
  expect_right_answer(client, "short", 10);
  const auto response = client.read();
  EXPECT_TRUE(response && response->status == 400);
  EXPECT_TRUE(client.closed());
}

TEST_F(ServerFaults, ABodyShorterThanItSaysEndsWithItsConnection) {
  start();
  RawClient client(server_->port());
  client.send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{\"prompt\":\"a\"}");
  client.finish_sending();
  EXPECT_TRUE(client.closed());
}

TEST_F(ServerFaults, AWrongKeyIsRefused) {
  options_.service.api_keys = {"one", "the other"};
  start();
  const std::string body = question("keys", 3).dump();
  for (const char* header :
       {"", "Authorization: Bearer \r\n", "Authorization: Bearer on\r\n", "Authorization: Bearer onetwo\r\n",
        "Authorization: Bearer oneone\r\n", "Authorization: Basic one\r\n", "Authorization: one\r\n"}) {
    const RawResponse response = server_->ask("POST", "/v1/completions", body, header);
    EXPECT_EQ(response.status, 401) << header;
    EXPECT_EQ(response.json()["error"]["code"], "invalid_api_key");
    EXPECT_EQ(server_->ask("GET", "/kv", "", header).status, 401);
  }
  EXPECT_EQ(server_->get("/health").status, 200);
  for (const char* header : {"Authorization: Bearer one\r\n", "Authorization: Bearer the other\r\n"})
    EXPECT_EQ(server_->ask("POST", "/v1/completions", body, header).status, 200);
  server_.reset();  // what is asked afterwards has no key
}

// ---- limits ------------------------------------------------------------------------------------------------------

TEST_F(ServerFaults, TooManyConnectionsAreTurnedAwayUntilOthersLeave) {
  options_.http.connections = 4;
  start();
  std::vector<RawClient> idle;
  for (int i = 0; i < 4; ++i) {
    idle.emplace_back(server_->port());
    idle.back().ask("GET", "/health");
    EXPECT_TRUE(idle.back().read());
  }
  for (int i = 0; i < 50; ++i) {  // each is told, though nobody reads what it asks
    RawClient client(server_->port());
    EXPECT_TRUE(client.ask("POST", "/v1/completions", std::string(1'000'000, ' ')));
    const auto response = client.read();
    ASSERT_TRUE(response) << i;
    EXPECT_EQ(response->status, 503);
    EXPECT_EQ(response->header("retry-after"), "1");
  }
  for (RawClient& client : idle) {  // those inside are not harmed
    client.ask("GET", "/health");
    EXPECT_TRUE(client.read());
  }
  idle.clear();
  wait_until([&] { return server_->get("/health").status == 200; });
}

TEST_F(ServerFaults, TooManyAnswersAreRefusedUntilOthersEnd) {
  start();
  std::vector<RawClient> running;
  for (uint32_t i = 0; i < kOpenAnswers; ++i)
    running.push_back(asking(streamed("running " + std::to_string(i), kEndless)));
  RawResponse response;
  Json more = question("one more", 2);
  more["quire"] = {{"priority", 1}};  // does not wait for the others to end
  wait_until([&] { return (response = server_->complete(more)).status == 429; });
  EXPECT_EQ(response.header("retry-after"), "1");
  EXPECT_EQ(response.json()["error"]["code"], "queue_full");
  running.pop_back();
  wait_until([&] { return (response = server_->complete(more)).status == 200; });
  EXPECT_EQ(response.json()["choices"][0]["text"], expected("one more", 2));
  running.clear();
  Json many = question("too many", 2);
  many["n"] = kOpenAnswers + 1;
  EXPECT_EQ(server_->complete(many).status, 400);  // it would not fit later either
}

TEST_F(ServerFaults, AnAnswerThatIsNotDoneInTimeSaysSo) {
  start();
  Json whole = question("late", kEndless);
  whole["quire"] = {{"deadline_ms", 100}};
  const RawResponse response = server_->complete(whole);
  EXPECT_EQ(response.status, 504);
  EXPECT_EQ(response.json()["error"]["code"], "deadline_exceeded");
  whole["stream"] = true;
  whole["n"] = 3;
  RawClient client = asking(whole);
  const auto streamed = client.read();
  ASSERT_TRUE(streamed);
  if (streamed->status == 200) {  // else not even its first token was in time
    const StreamText stream = read_events(streamed->body);
    EXPECT_EQ(stream.error, "deadline_exceeded");
    EXPECT_TRUE(stream.done);
    EXPECT_TRUE(stream.finish.empty());
  } else {
    EXPECT_EQ(streamed->status, 504);
  }
}

TEST_F(ServerFaults, APoolTooSmallForAllStillGivesEveryClientItsAnswer) {
  engine_.context = 320;
  engine_.kv_bytes = 0;
  const KvLayout layout = make_kv_layout(kv_shapes(tiny_model().spec(), engine_.kv_formats));
  engine_.kv_bytes = kv_bytes(layout, pages_for(layout, 320, 64, 1)) + layout.groups[0].page_bytes * 8;
  engine_.max_sequences = 8;
  start();
  std::vector<RawClient> clients;
  for (int i = 0; i < 12; ++i)
    clients.push_back(asking((i % 2 == 0 ? streamed : question)("crowd " + std::to_string(i), 250)));
  for (int i = 0; i < 12; ++i) expect_right_answer(clients[size_t(i)], "crowd " + std::to_string(i), 250);
  EXPECT_GT(server_->metric("quire_preemptions_total"), 0);
}

TEST_F(ServerFaults, ALargeRequestDoesNotHoldUpTheSmallOnes) {
  start();
  RawClient large(server_->port());
  large.ask("POST", "/tokenize", "{\"prompt\":\"" + std::string(2 << 20, 'a') + "\"}");
  for (int i = 0; i < 3; ++i) {
    RawClient small = asking(question("small", 10));
    expect_right_answer(small, "small", 10);
  }
  EXPECT_FALSE(large.has_bytes()) << "it came first: the small ones had to wait for it";
  const auto response = large.read();
  EXPECT_TRUE(response && response->status == 200);
}

// ---- the end -----------------------------------------------------------------------------------------------------

TEST_F(ServerFaults, StoppingFinishesWhatRunsAndTakesNothingNew) {
  options_.grace_seconds = 1e6;
  start();
  std::vector<RawClient> clients;
  for (int i = 0; i < 8; ++i)
    clients.push_back(asking((i % 2 == 0 ? streamed : question)("last " + std::to_string(i), 400)));
  RawClient idle(server_->port());
  wait_until([&] {
    const Json requests = server_->get("/requests").json();
    return requests["running"].get<int>() + requests["waiting"].get<int>() == 8;
  });
  server_->begin_to_stop();
  EXPECT_TRUE(idle.closed());
  EXPECT_FALSE(RawClient(server_->port()).connected());
  for (int i = 0; i < 8; ++i) expect_right_answer(clients[size_t(i)], "last " + std::to_string(i), 400);
  server_->wait();
  server_.reset();
}

void expect_told(RawClient& client) {
  const auto response = client.read();
  ASSERT_TRUE(response);
  if (response->status == 200) {
    const StreamText stream = read_events(response->body);
    EXPECT_EQ(stream.error, "cancelled");
    EXPECT_TRUE(stream.done);
  } else {
    EXPECT_EQ(response->status, 503);
  }
  EXPECT_TRUE(client.closed());
}

TEST_F(ServerFaults, WhatIsNotDoneWhenTheGraceEndsIsToldSo) {
  options_.grace_seconds = 0.1;
  start();
  std::vector<RawClient> clients;
  for (int i = 0; i < 8; ++i)
    clients.push_back(asking((i % 2 == 0 ? streamed : question)("cut " + std::to_string(i), kEndless)));
  wait_until([&] {
    const Json requests = server_->get("/requests").json();
    return requests["running"].get<int>() + requests["waiting"].get<int>() == 8;
  });
  ::kill(::getpid(), SIGTERM);
  for (RawClient& client : clients) expect_told(client);
  server_->wait();
  server_.reset();
}

TEST_F(ServerFaults, ASecondSignalEndsAtOnce) {
  options_.grace_seconds = 1e6;
  start();
  RawClient client = listening("impatient");
  RawClient idle(server_->port());
  idle.ask("GET", "/health");
  EXPECT_TRUE(idle.read());
  ::kill(::getpid(), SIGTERM);
  EXPECT_TRUE(idle.closed());  // the first has arrived: signals of a kind that come together count once
  ::kill(::getpid(), SIGTERM);
  std::string rest;
  while (const auto part = client.read_part()) {
    if (part->empty()) break;
    rest += *part;
  }
  EXPECT_EQ(read_events(rest).error, "cancelled");
  server_->wait();
  server_.reset();
}

TEST_F(ServerFaults, IdleConnectionsDoNotDelayTheEnd) {
  options_.grace_seconds = 1e6;
  options_.http.idle_time = options_.http.header_time = std::chrono::hours(1);
  start();
  std::vector<RawClient> idle;
  for (int i = 0; i < 20; ++i) {
    idle.emplace_back(server_->port());
    if (i % 3 == 1) idle.back().send("GET /health HT");
    if (i % 3 != 2) continue;
    idle.back().ask("GET", "/health");
    EXPECT_TRUE(idle.back().read());
  }
  server_->stop();
  for (RawClient& client : idle) EXPECT_TRUE(client.closed());
  server_.reset();
}

TEST_F(ServerFaults, AReaderThatStalledDoesNotKeepTheServerFromEnding) {
  options_.grace_seconds = 0.1;
  options_.http.write_time = std::chrono::hours(1);
  start();
  Json much = streamed("stalled", kEndless);
  much["logprobs"] = 20;
  RawClient stalled = asking(much, 4096);
  ASSERT_TRUE(stalled.read_head());
  server_->stop();
  server_.reset();
}

TEST_F(ServerFaults, RequestsThatAreBeingReadWhenItStopsAreToldThatItDoes) {
  options_.grace_seconds = 1e6;
  start();
  Json padded = question("padded", 5);
  padded["metadata"] = std::vector<int>(300'000, 1);  // takes a while to understand
  std::vector<RawClient> clients;
  for (int i = 0; i < 5; ++i) clients.push_back(asking(padded));
  RawClient lookup(server_->port());
  lookup.ask("POST", "/kv/lookup", padded.dump());
  EXPECT_EQ(server_->get("/health").status, 200);
  server_->begin_to_stop();
  for (RawClient& client : clients) {
    if (const auto response = client.read()) {
      EXPECT_TRUE(response->status == 200 || response->status == 503) << response->body;
    }
  }
  if (const auto response = lookup.read()) {
    EXPECT_TRUE(response->status == 200 || response->status == 503) << response->body;
  }
  server_->wait();
  server_.reset();
}

}  // namespace
}  // namespace quire
