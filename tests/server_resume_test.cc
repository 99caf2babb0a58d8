// Streams that outlive their readers: read again from the beginning, followed, bounded in memory and time.
#include "server_keys_fixture.h"

namespace quire {
namespace {

class ServerResume : public ServerTest {
 protected:
  static Json resumable(Json fields = Json::object()) {
    fields["quire"] = {{"resume", true}};
    return fields;
  }
  // What GET /v1/stream/ID says, to its end.
  StreamReply again(const std::string& id) {
    HttpClient client(port());
    client.request("GET", "/v1/stream/" + id);
    StreamReply reply;
    reply.head = client.read_head();
    while (const auto event = client.read_event()) {
      EXPECT_FALSE(reply.done);
      reply.done = *event == "[DONE]";
      if (!reply.done) reply.events.push_back(parse_json(*event, "an event"));
    }
    return reply;
  }
  // Of a stream that may not have ended: its head alone is read.
  int status_of(const std::string& id) {
    HttpClient client(port());
    client.request("GET", "/v1/stream/" + id);
    return client.read_head().status;
  }
  void expect_idle() {
    wait_until("/requests", [](const Json& state) { return state["running"] == 0 && state["waiting"] == 0; });
  }
};

TEST_F(ServerResume, AStreamCanBeReadAgainFromItsBeginning) {
  const StreamReply first = stream_chat(resumable({{"max_tokens", 20}, {"ignore_eos", true}}));
  ASSERT_TRUE(first.done);
  for (int i = 0; i < 2; ++i) {
    const StreamReply second = again(first.head.header("x-request-id"));
    EXPECT_EQ(second.head.status, 200);
    EXPECT_EQ(second.head.header("content-type"), first.head.header("content-type"));
    EXPECT_TRUE(second.done);
    EXPECT_EQ(second.events, first.events);
  }
}

TEST_F(ServerResume, AnAnswerGoesOnWhenItsReaderHasLeft) {
  const Json fields = {{"max_tokens", 3000}, {"ignore_eos", true}, {"temperature", 0}};
  const StreamReply whole = stream_completion(fields);
  Json body = resumable(fields);
  body["stream"] = true;
  body["prompt"] = "Once upon a time";
  HttpClient client(port());
  client.request("POST", "/v1/completions", body.dump());
  const std::string id = client.read_head().header("x-request-id");
  ASSERT_TRUE(client.read_event());
  client.close();
  const StreamReply followed = again(id);
  EXPECT_TRUE(followed.done);
  EXPECT_EQ(followed.text(), whole.text());
  EXPECT_EQ(followed.finish_reason(), "length");
}

TEST_F(ServerResume, SeveralFollowOneStream) {
  Running running = start_endless(resumable());
  HttpClient first(port()), second(port());
  for (HttpClient* client : {&first, &second}) {
    client->request("GET", "/v1/stream/" + running.id);
    EXPECT_EQ(client->read_head().status, 200);
    for (int i = 0; i < 50; ++i) EXPECT_TRUE(client->read_event());
  }
  running.client->close();
  first.close();
  for (int i = 0; i < 50; ++i) EXPECT_TRUE(second.read_event());  // one reader is enough
  EXPECT_EQ(ask("DELETE", "/requests/" + running.id).status, 200);
  std::string last;
  while (const auto event = second.read_event()) {
    if (*event != "[DONE]") last = *event;
  }
  EXPECT_NE(last.find("cancelled"), std::string::npos) << last;
  expect_idle();
}

TEST_F(ServerResume, WhatNobodyReadsForTooLongIsGivenUp) {
  ServerOptions options = TestServer::server_options();
  options.service.limits.kept.unread = std::chrono::milliseconds(30);
  serve(options);
  Running running = start_endless(resumable());
  running.client->close();
  expect_idle();
  EXPECT_EQ(status_of(running.id), 200);  // what was said until then
}

TEST_F(ServerResume, WhoDoesNotAskForItIsCancelledWhenItLeaves) {
  Running running = start_endless();
  EXPECT_EQ(status_of(running.id), 404);
  running.client->close();
  expect_idle();
  EXPECT_EQ(status_of(running.id), 404);
}

TEST_F(ServerResume, AStreamThatBecomesTooLongIsNotKept) {
  ServerOptions options = TestServer::server_options();
  options.service.limits.kept.bytes = 4000;
  serve(options);
  const StreamReply reply =
      stream_completion(resumable({{"max_tokens", 500}, {"ignore_eos", true}, {"logprobs", 5}}));
  EXPECT_TRUE(reply.done) << "who asked for it is told all of it";
  const HttpReply again = get("/v1/stream/" + reply.head.header("x-request-id"));
  EXPECT_EQ(again.status, 410);
  EXPECT_EQ(again.error("code"), "stream_too_long");
  Running running = start_endless(resumable());
  while (status_of(running.id) != 410) EXPECT_TRUE(running.client->read_event());
  running.client->close();
  expect_idle();  // at once: nobody could read it again
}

TEST_F(ServerResume, WhatEndedFirstMakesRoom) {
  ServerOptions options = TestServer::server_options();
  options.service.limits.kept.streams = 2;
  serve(options);
  std::vector<std::string> ids;
  for (int i = 0; i < 3; ++i) {
    const StreamReply reply = stream_completion(resumable({{"max_tokens", 3}}));
    ids.push_back(reply.head.header("x-request-id"));
  }
  EXPECT_EQ(status_of(ids[0]), 404);
  EXPECT_EQ(status_of(ids[1]), 200);
  EXPECT_EQ(status_of(ids[2]), 200);
}

TEST_F(ServerResume, AStreamIsForgottenAWhileAfterItsEnd) {
  ServerOptions options = TestServer::server_options();
  options.service.limits.kept.ended = std::chrono::milliseconds(1);
  serve(options);
  const StreamReply reply = stream_completion(resumable({{"max_tokens", 3}}));
  while (status_of(reply.head.header("x-request-id")) != 404) {
  }
}

TEST_F(ServerResume, OnlyStreamsCanBeReadAgain) {
  Json body = resumable({{"prompt", "Once"}});
  const HttpReply reply = post("/v1/completions", body);
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(reply.error("param"), "quire.resume");
}

TEST_F(ServerResume, TheHeadOfAStreamHasNoBody) {
  const StreamReply reply = stream_completion(resumable({{"max_tokens", 3}}));
  HttpClient client(port());
  client.request("HEAD", "/v1/stream/" + reply.head.header("x-request-id"));
  EXPECT_EQ(client.read_reply(HttpClient::Body::stays).status, 200);
  client.request("GET", "/health");
  EXPECT_EQ(client.read_reply().json()["status"], "ok");
}

TEST_F(ServerKeys, AStreamIsReadAgainOnlyByTheKeyThatAsked) {
  const Json body = {
      {"prompt", secret()}, {"stream", true}, {"max_tokens", 3}, {"quire", {{"resume", true}}}};
  const HttpReply reply = as(kAnn, "POST", "/v1/completions", body);
  const std::string id = reply.header("x-request-id");
  EXPECT_EQ(as(kAnn, "GET", "/v1/stream/" + id).status, 200);
  expect_unknown("GET", "/v1/stream/", id, "");
  EXPECT_EQ(ask("GET", "/v1/stream/" + id).status, 401);
}

}  // namespace
}  // namespace quire
