// A server that is told to stop: what runs is finished or told, and nothing keeps it from ending.
#include <csignal>

#include "server_faults_fixture.h"

namespace quire {
namespace {

using ServerStop = ServerFaults;

TEST_F(ServerStop, StoppingFinishesWhatRunsAndTakesNothingNew) {
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

// It is said where it listens before it serves, and whoever reads that may end it then.
TEST(ServerToldToStop, BeforeItServesItEndsAsAtAnyTime) {
  const LoadedModel model(golden_folder("llama3"), {.context = 256, .threads = 1, .kernels = "auto"});
  EngineOptions engine;
  engine.context = 256;
  engine.max_sequences = 2;
  engine.kv_bytes = size_t(1) << 20;
  ServerOptions options;
  options.port = 0;
  options.grace_seconds = 1e6;
  Server server(model, std::make_unique<Engine>(model.engine_model(), engine), "tiny",
                {.read_gb_s = 10, .int8_gops = 100, .f32_gflops = 50}, options);
  const uint16_t port = server.port();
  server.heed_signals();
  ::kill(::getpid(), SIGTERM);
  server.run();
  EXPECT_TRUE(server.lost().empty());
  EXPECT_FALSE(RawClient(port).connected());
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

TEST_F(ServerStop, WhatIsNotDoneWhenTheGraceEndsIsToldSo) {
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

TEST_F(ServerStop, WhoIsToLeaveSaysSoBeforeAnythingIsRefused) {
  options_.drain_seconds = 1e6;
  options_.grace_seconds = 1e6;
  start();
  EXPECT_EQ(server_->get("/health").status, 200);
  ::kill(::getpid(), SIGTERM);
  wait_until([&] { return server_->get("/health").status == 503; });
  EXPECT_EQ(server_->get("/health").json()["status"], "draining");
  RawClient late = asking(question("late", 40));  // over a connection of its own
  expect_right_answer(late, "late", 40);
  RawClient running = asking(streamed("last", 400));
  wait_until([&] { return server_->get("/requests").json()["running"] == 1; });
  ::kill(::getpid(), SIGTERM);  // long enough: now nothing new
  wait_until([&] { return !RawClient(server_->port()).connected(); });
  expect_right_answer(running, "last", 400);
  server_->wait();
  server_.reset();
}

TEST_F(ServerStop, ASecondSignalEndsAtOnce) {
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

TEST_F(ServerStop, IdleConnectionsDoNotDelayTheEnd) {
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

TEST_F(ServerStop, AReaderThatStalledDoesNotKeepTheServerFromEnding) {
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

TEST_F(ServerStop, RequestsThatAreBeingReadWhenItStopsAreToldThatItDoes) {
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
