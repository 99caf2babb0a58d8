// Clients that lie or send too much: they are told, and nobody else notices.
#include "server_faults_fixture.h"

namespace quire {
namespace {

using ServerWrongRequests = ServerFaults;

TEST_F(ServerWrongRequests, WhatIsNotHttpIsRefused) {
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

TEST_F(ServerWrongRequests, APathThatNobodyKnowsIsNotFound) {
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

TEST_F(ServerWrongRequests, WhatIsTooLargeIsRefusedAndTheClientIsTold) {
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

TEST_F(ServerWrongRequests, ChunksWithEndlessExtensionsOrTrailersAreRefused) {
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

TEST_F(ServerWrongRequests, BodiesThatMakeNoSenseAreRefused) {
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

TEST_F(ServerWrongRequests, ABodyLongerThanItSaysIsAnsweredAndTheRestRefused) {
  start();
  RawClient client(server_->port());
  client.send(RawClient::request("POST", "/v1/completions", question("short", 10).dump()) +
              "the rest\r\n\r\n");
  expect_right_answer(client, "short", 10);
  const auto response = client.read();
  EXPECT_TRUE(response && response->status == 400);
  EXPECT_TRUE(client.closed());
}

TEST_F(ServerWrongRequests, ABodyShorterThanItSaysEndsWithItsConnection) {
  start();
  RawClient client(server_->port());
  client.send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{\"prompt\":\"a\"}");
  client.finish_sending();
  EXPECT_TRUE(client.closed());
}

TEST_F(ServerWrongRequests, AWrongKeyIsRefused) {
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
}  // namespace
}  // namespace quire
