// Clients that break off or stall: nobody else notices, and nothing is left of them.
#include "server_faults_fixture.h"

namespace quire {
namespace {

using std::chrono::milliseconds;

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
}  // namespace
}  // namespace quire
