// Clients that nobody knows: what they send is judged by its head, what all of them hold together is bounded, and none
// of them keeps a place that others could have.
#include <csignal>

#include <gtest/gtest.h>

#include "golden_model.h"
#include "server_in_process.h"

namespace quire {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

constexpr uint32_t kContext = 32768;

const LoadedModel& tiny_model() {
  static const LoadedModel model(golden_folder("llama3"), {.context = kContext, .threads = 1});
  return model;
}

class ServerStrangers : public testing::Test {
 protected:
  ServerStrangers() {
    options_.service.limits.open_answers = 4;
    engine_ = {.context = kContext, .max_sequences = 4, .prefill_chunk = 64};
    engine_.kv_bytes = size_t(64) << 20;
  }
  ServerInProcess& start() {
    server_ = std::make_unique<ServerInProcess>(tiny_model(), engine_, options_);
    return *server_;
  }
  static Json question(const std::string& prompt, uint32_t tokens) {
    return {{"prompt", prompt}, {"max_tokens", tokens}, {"temperature", 0}, {"ignore_eos", true}};
  }
  // The status of what the server says to some bytes, after which it closes.
  int status_of(std::string_view bytes) const {
    RawClient client(server_->port());
    client.send(bytes);
    const auto response = client.read();
    if (!response) return 0;
    EXPECT_TRUE(client.closed());
    return response->status;
  }
  // The status that a request gets that only has a head so far. 100: it may go on.
  int status_of_head(std::string_view path, std::string_view headers) const {
    RawClient client(server_->port());
    client.send(
        fmt::format("POST {} HTTP/1.1\r\nHost: test\r\nExpect: 100-continue\r\n{}\r\n", path, headers));
    const auto response = client.read_head();
    return response ? response->status : 0;
  }
  // A body whose reply has some eight million bytes: more than a system keeps for a client that does not read.
  static std::string large_question() {
    std::string body = "{\"tokens\":[5";
    for (int i = 1; i < 4'000'000; ++i) body += ",5";
    return body + "]}";
  }

  ServerOptions options_;
  EngineOptions engine_;
  std::unique_ptr<ServerInProcess> server_;
};

// ---- heads -------------------------------------------------------------------------------------------------------

TEST_F(ServerStrangers, WhatCouldBeReadInTwoWaysIsRefusedAndTheConnectionClosed) {
  start();
  const std::string_view wrong[] = {
      "GET /health HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n\r\n",
      "GET /health HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
      "POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: "
      "5\r\n\r\n0\r\n\r\n",
      "POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
      "POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 2, 2\r\n\r\n{}",
      "GET /health HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n",
      "GET /health HTTP/1.1\r\n\r\n",
      "GET /health HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n",
      "GET /health HTTP/1.1\r\nHost: x\r\nX: a\r\n b\r\n\r\n",
      "GET /health#a HTTP/1.1\r\nHost: x\r\n\r\n",
      "GET http://x/health HTTP/1.1\r\nHost: x\r\n\r\n",
      "GET /health HTTP/1.1\nHost: x\n\n",
      "POST /tokenize HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
  };
  for (const std::string_view bytes : wrong) EXPECT_EQ(status_of(bytes), 400) << bytes;
}

TEST_F(ServerStrangers, AKeyInATrailerIsNoKey) {
  options_.service.api_keys = {"sesame"};
  start();
  const std::string body = "9\r\n{\"a\":\"b\"}\r\n0\r\nAuthorization: Bearer sesame\r\n\r\n";
  EXPECT_EQ(status_of("POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + body),
            401);
}

TEST_F(ServerStrangers, ChunksMayBeCutAnywhere) {
  start();
  for (const std::string body : {"0\r\n\r\n", "c\r\n{\"prompt\":\"a\r\n2\r\n\"}\r\n0\r\nX: y\r\n\r\n"}) {
    RawClient client(server_->port());
    client.send("POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
    for (const char byte : body) {
      client.send({&byte, 1});
      EXPECT_EQ(server_->get("/health").status, 200);  // by now it has seen the byte
    }
    const auto response = client.read();
    ASSERT_TRUE(response);
    EXPECT_EQ(response->status, body.size() > 5 ? 200 : 400) << response->body;
  }
}

TEST_F(ServerStrangers, EveryReplyForbidsToGuessItsType) {
  start();
  for (const char* path : {"/", "/health", "/v1/models", "/metrics", "/nothing", "/kv"})
    EXPECT_EQ(server_->get(path).header("x-content-type-options"), "nosniff") << path;
  Json streamed = question("a", 2);
  streamed["stream"] = true;
  EXPECT_EQ(server_->complete(streamed).header("x-content-type-options"), "nosniff");
  RawClient client(server_->port());
  client.send("nonsense\r\n\r\n");
  const auto refused = client.read();
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->header("x-content-type-options"), "nosniff");
}

// ---- admission ---------------------------------------------------------------------------------------------------

TEST_F(ServerStrangers, WhoIsRefusedIsToldBeforeTheBodyIsRead) {
  options_.service.api_keys = {"sesame"};
  options_.http.body_time = hours(1);
  options_.http.body_bytes = 1 << 20;
  start();
  const std::string key = "Authorization: Bearer sesame\r\n", length = "Content-Length: 1000000\r\n";
  EXPECT_EQ(status_of_head("/v1/completions", length), 401);
  EXPECT_EQ(status_of_head("/v1/completions", length + "Authorization: Bearer wrong\r\n"), 401);
  EXPECT_EQ(status_of_head("/v1/completions", "Transfer-Encoding: chunked\r\n"), 401);
  EXPECT_EQ(status_of_head("/nothing", length + key), 404);
  EXPECT_EQ(status_of_head("/v1/models", length + key), 405);
  EXPECT_EQ(status_of_head("/v1/completions", length + key + "Origin: https://evil.example\r\n"), 403);
  EXPECT_EQ(status_of_head("/v1/completions", "Content-Length: 1048577\r\n" + key), 413);
  EXPECT_EQ(status_of_head("/v1/completions", length + key), 100);
  // The same without waiting for a word.
  RawClient client(server_->port());
  client.send("POST /v1/completions HTTP/1.1\r\nHost: x\r\n" + length + "\r\n");
  const auto response = client.read();
  ASSERT_TRUE(response);
  EXPECT_EQ(response->status, 401);
  EXPECT_TRUE(client.closed());
}

TEST_F(ServerStrangers, ARefusalWithoutABodyLeavesTheConnectionOpen) {
  options_.service.api_keys = {"sesame"};
  start();
  RawClient client(server_->port());
  for (int i = 0; i < 3; ++i) {
    client.ask("GET", "/kv");
    const auto response = client.read();
    ASSERT_TRUE(response);
    EXPECT_EQ(response->status, 401);
  }
}

TEST_F(ServerStrangers, BodiesBeyondWhatAllMayHoldAreRefusedUntilOthersAreDone) {
  options_.http.request_bytes_in_flight = 1'000'000;
  start();
  const std::string body = R"({"prompt":")" + std::string(899'000, 'a') + "\"}";
  RawClient half(server_->port());
  half.send(fmt::format("POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", body.size()));
  half.send(std::string_view(body).substr(0, body.size() - 1));
  wait_until([&] { return status_of_head("/tokenize", "Content-Length: 500000\r\n") == 503; });
  EXPECT_EQ(status_of_head("/tokenize", "Content-Length: 50000\r\n"), 100);  // there is room for small ones
  // Nobody knows how long a body in chunks will be: it is counted as it comes.
  RawClient chunks(server_->port());
  chunks.send("POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n30d40\r\n");
  chunks.send(std::string(200'000, 'a'));
  const auto refused = chunks.read();
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->status, 503);
  EXPECT_EQ(refused->header("retry-after"), "1");
  half.send(body.substr(body.size() - 1));
  const auto response = half.read();
  EXPECT_TRUE(response && response->status == 200);
  wait_until([&] { return status_of_head("/tokenize", "Content-Length: 500000\r\n") == 100; });
}

// ---- readers that do not read ------------------------------------------------------------------------------------

TEST_F(ServerStrangers, RepliesBeyondWhatAllMayHoldAreRefusedUntilOthersAreRead) {
  options_.http.reply_bytes_in_flight = 2'000'000;
  options_.http.write_time = hours(1);
  start();
  const std::string large = large_question(), small = R"({"tokens":[5,5,5]})";
  RawClient unread(server_->port(), 4096);
  unread.ask("POST", "/detokenize", large);
  ASSERT_TRUE(unread.read_head());  // alone, it has room
  const RawResponse refused = server_->ask("POST", "/detokenize", large);
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.header("retry-after"), "1");
  EXPECT_EQ(server_->ask("POST", "/detokenize", small).status, 200);
  unread.reset();
  wait_until([&] { return server_->ask("POST", "/detokenize", large).status == 200; });
}

TEST_F(ServerStrangers, AWholeReplyHasTimeAccordingToItsBytes) {
  options_.http.write_time = milliseconds(500);
  options_.http.least_bytes_per_second = size_t(1) << 30;
  start();
  RawClient slow(server_->port(), 4096);
  slow.ask("POST", "/detokenize", large_question());
  const auto head = slow.read_head();
  ASSERT_TRUE(head);
  const size_t size = std::stoul(head->header("content-length"));
  // It always takes something, but would take minutes in all.
  std::string bytes(32 << 10, '\0');
  size_t taken = 0;
  for (ssize_t count = 1; count > 0;) {
    count = ::recv(slow.socket(), bytes.data(), bytes.size(), 0);
    if (count > 0) taken += size_t(count);
    std::this_thread::sleep_for(milliseconds(20));
  }
  EXPECT_LT(taken + bytes.size(), size);
}

TEST_F(ServerStrangers, AnAnswerThatNobodyReadsLeavesItsPlaceToOthers) {
  options_.http.write_time = hours(1);
  start();
  Json much = question("much", 5000), next = question("next", 2);
  much["n"] = next["n"] = options_.service.limits.open_answers;  // all that may be open
  much["logprobs"] = 20;
  RawClient unread(server_->port(), 4096);
  unread.ask("POST", "/v1/completions", much.dump());
  const auto head = unread.read_head();
  ASSERT_TRUE(head);
  ASSERT_GT(std::stoul(head->header("content-length")), size_t(5) << 20);  // it cannot have been written yet
  EXPECT_EQ(server_->complete(next).status, 200);
}

TEST_F(ServerStrangers, AStreamThatNobodyReadsIsEndedWhenTooMuchOfItWaits) {
  options_.service.limits.unread_bytes = 64 << 10;
  options_.http.write_time = hours(1);
  start();
  Json much = question("much", 30000);
  much["logprobs"] = 20;
  much["stream"] = true;
  RawClient unread(server_->port(), 4096);
  unread.ask("POST", "/v1/completions", much.dump());
  ASSERT_TRUE(unread.read_head());
  wait_until([&] { return server_->get("/requests").json()["running"] == 0; });
  EXPECT_EQ(server_->metric("quire_requests_cancelled_total"), 1);
  std::string events;
  while (const auto part = unread.read_part()) {
    if (part->empty()) break;
    events += *part;
  }
  const StreamText stream = read_events(events);
  EXPECT_EQ(stream.error, "reader_too_slow");
  EXPECT_TRUE(stream.done);
}

TEST_F(ServerStrangers, AStreamOfWordsThatIsReadLateIsComplete) {
  options_.service.limits.unread_bytes = 16 << 10;
  start();
  const Json ask = question("late", 2000);
  const std::string expected = server_->complete(ask).json()["choices"][0]["text"];
  Json streamed = ask;
  streamed["stream"] = true;
  RawClient late(server_->port(), 4096);
  late.ask("POST", "/v1/completions", streamed.dump());
  ASSERT_TRUE(late.read_head());
  wait_until([&] { return server_->get("/requests").json()["running"] == 0; });
  std::string events;
  while (const auto part = late.read_part()) {
    if (part->empty()) break;
    events += *part;
  }
  StreamText stream = read_events(events);
  EXPECT_TRUE(stream.done);
  EXPECT_EQ(stream.texts[0], expected);
}

TEST_F(ServerStrangers, ALargeForkIsUnderstoodAsideToo) {
  start();
  Json fork = {{"at", 1}, {"metadata", std::vector<int>(2'000'000, 1)}};
  RawClient large(server_->port());
  large.ask("POST", "/requests/cmpl-1/fork", fork.dump());
  while (server_->get("/health").status == 200 && !large.has_bytes()) {
  }
  const auto response = large.read();
  ASSERT_TRUE(response);
  EXPECT_EQ(response->status, 404) << response->body;
}

// ---- the end -----------------------------------------------------------------------------------------------------

// Serves until it is told to stop, with a worker that never comes back, and ends as `quire serve` does.
[[noreturn]] void serve_with_a_stuck_worker() {
  ServerOptions options;
  options.port = 0;
  options.grace_seconds = 0.1;
  options.service.limits.open_answers = 4;
  options.service.before_work = [](Workers::Lane) {
    ::kill(::getpid(), SIGTERM);
    std::this_thread::sleep_for(hours(1));
  };
  EngineOptions engine{.context = 1024, .max_sequences = 4, .prefill_chunk = 64};
  engine.kv_bytes = size_t(8) << 20;
  Server server(tiny_model(), std::make_unique<Engine>(tiny_model().engine_model(), engine), "test", {},
                options);
  std::thread([port = server.port()] {
    RawClient client(port);
    client.ask("POST", "/v1/completions", R"({"prompt":"Hi"})");
    client.closed();
  }).detach();
  server.run_to_the_end();
  std::fprintf(stderr, "whole\n");
  std::_Exit(3);
}

TEST(ServerEndDeathTest, AWorkerThatNeverComesBackDoesNotKeepTheProcess) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(serve_with_a_stuck_worker(), testing::ExitedWithCode(0), "ended without waiting for it");
}

}  // namespace
}  // namespace quire
