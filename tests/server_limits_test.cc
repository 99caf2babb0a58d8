// More than a server takes: some are refused, and the others get their answers.
#include "server_faults_fixture.h"

namespace quire {
namespace {

using ServerLimits = ServerFaults;

TEST_F(ServerLimits, TooManyConnectionsAreTurnedAwayUntilOthersLeave) {
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

TEST_F(ServerLimits, TooManyAnswersAreRefusedUntilOthersEnd) {
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

TEST_F(ServerLimits, AnAnswerThatIsNotDoneInTimeSaysSo) {
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

TEST_F(ServerLimits, APoolTooSmallForAllStillGivesEveryClientItsAnswer) {
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

TEST_F(ServerLimits, ALargeRequestDoesNotHoldUpTheSmallOnes) {
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
}  // namespace
}  // namespace quire
