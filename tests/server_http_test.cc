// How the server speaks HTTP: connections, methods, keys, origins, limits.
#include "server_fixture.h"

namespace quire {
namespace {

using ServerHttp = ServerTest;

const char kAsk[] = R"({"prompt":"Hi","max_tokens":2,"temperature":0})";

TEST_F(ServerHttp, AConnectionServesOneRequestAfterTheOther) {
  HttpClient client(port());
  for (int i = 0; i < 3; ++i) {
    client.request("POST", "/v1/completions", kAsk);
    EXPECT_EQ(client.read_reply().status, 200);
    client.request("GET", "/v1/nothing");
    EXPECT_EQ(client.read_reply().status, 404);
  }
  client.request("GET", "/health", "", "Connection: close\r\n");
  EXPECT_EQ(client.read_reply().header("connection"), "close");
  EXPECT_TRUE(client.at_end());
}

TEST_F(ServerHttp, AStreamLeavesTheConnectionReadyForTheNextRequest) {
  HttpClient client(port());
  for (int i = 0; i < 2; ++i) {
    client.request("POST", "/v1/completions", R"({"prompt":"Hi","max_tokens":2,"stream":true})");
    EXPECT_EQ(client.read_head().header("transfer-encoding"), "chunked");
    std::string last;
    while (const auto event = client.read_event()) last = *event;
    EXPECT_EQ(last, "[DONE]");
  }
  client.request("GET", "/health");
  EXPECT_EQ(client.read_reply().status, 200);
}

TEST_F(ServerHttp, RequestsSentEarlyAreAnsweredInOrder) {
  HttpClient client(port());
  client.request("POST", "/v1/completions", kAsk);
  client.request("GET", "/version");
  client.request("POST", "/v1/completions", R"({"prompt":"Hi","max_tokens":3,"stream":true})");
  client.request("GET", "/health");
  EXPECT_EQ(client.read_reply().json()["object"], "text_completion");
  EXPECT_EQ(client.read_reply().json()["version"], "1.2.3");
  EXPECT_EQ(client.read_head().header("content-type"), "text/event-stream");
  while (client.read_event()) {
  }
  EXPECT_EQ(client.read_reply().json()["status"], "ok");
}

TEST_F(ServerHttp, HttpOnePointZeroEndsWithTheConnection) {
  HttpClient plain(port());
  plain.send("GET /health HTTP/1.0\r\n\r\n");
  EXPECT_EQ(plain.read_reply().json()["status"], "ok");
  EXPECT_TRUE(plain.at_end());

  HttpClient kept(port());
  for (int i = 0; i < 2; ++i) {
    kept.send("GET /health HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    const HttpReply reply = kept.read_reply();
    EXPECT_EQ(reply.version, "HTTP/1.0");
    EXPECT_EQ(reply.header("connection"), "keep-alive");
  }

  HttpClient streaming(port());
  const std::string body = R"({"prompt":"Hi","max_tokens":3,"stream":true})";
  streaming.send(
      fmt::format("POST /v1/completions HTTP/1.0\r\nContent-Length: {}\r\n\r\n{}", body.size(), body));
  EXPECT_EQ(streaming.read_head().header("transfer-encoding"), "");  // HTTP/1.0 knows no chunks
  std::string last;
  while (const auto event = streaming.read_event()) last = *event;
  EXPECT_EQ(last, "[DONE]");
}

TEST_F(ServerHttp, HeadHasTheHeadersOfGetAndNoBody) {
  HttpClient client(port());
  client.request("HEAD", "/v1/models");
  const HttpReply head = client.read_reply(HttpClient::Body::stays);
  client.request("GET", "/v1/models");
  const HttpReply whole = client.read_reply();
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.header("content-length"), whole.header("content-length"));
  EXPECT_EQ(std::to_string(whole.body.size()), whole.header("content-length"));
  client.request("HEAD", "/v1/models");
  client.read_reply(HttpClient::Body::stays);
  client.send("nonsense\r\n\r\n");
  EXPECT_EQ(client.read_reply().error("type"),
            "invalid_request_error");  // which is no answer to HEAD any more
}

TEST_F(ServerHttp, AClientThatWaitsForContinueIsToldToGoOn) {
  HttpClient client(port());
  client.send(
      fmt::format("POST /v1/completions HTTP/1.1\r\nHost: test\r\nExpect: 100-continue\r\n"
                  "Content-Length: {}\r\n\r\n",
                  sizeof(kAsk) - 1));
  EXPECT_EQ(client.read_head().status, 100);
  client.send(kAsk);
  EXPECT_EQ(client.read_reply().status, 200);
}

TEST_F(ServerHttp, ABodyMayComeInChunks) {
  HttpClient client(port());
  client.send("POST /v1/completions HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n");
  client.send("5\r\n{\"pro\r\n");
  client.send("1d\r\nmpt\":\"Hi\",\"max_tokens\":2    }\r\n0\r\n\r\n");
  const HttpReply reply = client.read_reply();
  EXPECT_EQ(reply.status, 200) << reply.body;
}

TEST_F(ServerHttp, APathOrMethodThatIsNotThereIsToldSo) {
  EXPECT_EQ(get("/v1/audio/speech").status, 404);
  EXPECT_EQ(post("/v1/audio/speech", Json::object()).error("type"), "not_found_error");
  EXPECT_EQ(get("?").status, 400);
  EXPECT_EQ(get("*").status, 400);
  EXPECT_EQ(get("/%00/../etc/passwd").status, 404);
  const HttpReply wrong = get("/v1/chat/completions");
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(wrong.header("allow"), "POST, OPTIONS");
  EXPECT_EQ(wrong.error("code"), "method_not_allowed");
  EXPECT_EQ(ask("DELETE", "/v1/models").header("allow"), "GET, HEAD, OPTIONS");
  EXPECT_EQ(ask("BREW", "/health").status, 405);
  EXPECT_EQ(get("/health?since=5&x").status, 200);
}

TEST_F(ServerHttp, WhatIsNotHttpIsRefusedAndTheConnectionEnds) {
  HttpClient client(port());
  client.send("hello\r\n\r\n");
  EXPECT_EQ(client.read_reply().status, 400);
  EXPECT_TRUE(client.at_end());
  EXPECT_EQ(get("/health").status, 200);
}

TEST_F(ServerHttp, TooLargeRequestsAreRefusedBeforeTheyAreRead) {
  ServerOptions options = TestServer::server_options();
  options.http.body_bytes = 1000;
  options.http.header_bytes = 2000;
  serve(options);
  EXPECT_EQ(ask("POST", "/v1/completions", std::string(1001, ' ')).status, 413);
  EXPECT_EQ(ask("GET", "/health", "", "X-Long: " + std::string(3000, 'x') + "\r\n").status, 431);
  HttpClient waiting(port());
  waiting.send(
      "POST /v1/completions HTTP/1.1\r\nHost: test\r\nExpect: 100-continue\r\nContent-Length: "
      "5000000\r\n\r\n");
  EXPECT_EQ(waiting.read_reply().status, 413);
  HttpClient chunked(port());
  chunked.send("POST /v1/completions HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n7d0\r\n" +
               std::string(2000, ' '));
  EXPECT_EQ(chunked.read_reply().status, 413);
}

TEST_F(ServerHttp, OneConnectionTooManyIsToldToComeAgain) {
  ServerOptions options = TestServer::server_options();
  options.http.connections = 1;
  serve(options);
  HttpClient first(port());
  first.request("GET", "/health");
  EXPECT_EQ(first.read_reply().status, 200);
  for (int i = 0; i < 20; ++i) {
    HttpClient second(port());
    second.request("POST", "/v1/completions", kAsk);
    const HttpReply reply = second.read_reply();
    EXPECT_EQ(reply.status, 503);
    EXPECT_EQ(reply.header("retry-after"), "1");
  }
  first.request("GET", "/health");
  EXPECT_EQ(first.read_reply().status, 200);
}

TEST_F(ServerHttp, AKeyIsAskedForEverywhereButForHealthAndThePage) {
  ServerOptions options = TestServer::server_options();
  options.service.api_keys = {"sesame", "second"};
  serve(options);
  EXPECT_EQ(get("/health").status, 200);
  for (const char* target :
       {"/v1/models", "/metrics", "/kv", "/requests", "/version", "/server_info", "/model_info"}) {
    const HttpReply reply = get(target);
    EXPECT_EQ(reply.status, 401) << target;
    EXPECT_EQ(reply.error("type"), "authentication_error");
    EXPECT_EQ(reply.header("www-authenticate"), "Bearer");
  }
  EXPECT_EQ(ask("POST", "/v1/completions", kAsk).status, 401);
  EXPECT_EQ(ask("DELETE", "/requests/x").status, 401);
  const auto with = [&](const std::string& header) {
    return ask("GET", "/v1/models", "", "Authorization: " + header + "\r\n").status;
  };
  EXPECT_EQ(with("Bearer sesame"), 200);
  EXPECT_EQ(with("Bearer second"), 200);
  EXPECT_EQ(with("bearer second"), 200);
  for (const char* wrong : {"Bearer sesam", "Bearer sesamee", "Bearer sesamesesame", "Bearer", "Bearer x",
                            "Basic sesame", "sesame"})
    EXPECT_EQ(with(wrong), 401) << wrong;
}

TEST_F(ServerHttp, APageFromElsewhereIsRefusedUnlessItIsAllowed) {
  const auto from = [&](const std::string& origin) {
    return ask("POST", "/v1/completions", kAsk, "Origin: " + origin + "\r\n");
  };
  EXPECT_EQ(from("https://evil.example").status, 403);
  EXPECT_EQ(from("null").status, 403);
  EXPECT_EQ(from("http://test").status, 200);  // the server's own page
  EXPECT_EQ(ask("OPTIONS", "/v1/completions", "", "Origin: https://evil.example\r\n").status, 403);
  EXPECT_EQ(metric("quire_requests_refused_total"), 3);

  ServerOptions options = TestServer::server_options();
  options.service.allowed_origins = {"https://good.example", "https://fine.example"};
  options.service.api_keys = {"sesame"};
  serve(options);
  const HttpReply good =
      ask("GET", "/v1/models", "", "Origin: https://fine.example\r\nAuthorization: Bearer sesame\r\n");
  EXPECT_EQ(good.status, 200);
  EXPECT_EQ(good.header("access-control-allow-origin"), "https://fine.example");
  EXPECT_EQ(good.header("vary"), "Origin");
  EXPECT_NE(good.header("access-control-expose-headers").find("X-Request-Id"), std::string::npos);
  const HttpReply refused = from("https://good.example");
  EXPECT_EQ(refused.status, 401);  // which its page may read
  EXPECT_EQ(refused.header("access-control-allow-origin"), "https://good.example");
  EXPECT_EQ(from("https://evil.example").status, 403);
}

TEST_F(ServerHttp, ANameThatOnlyPretendsToBeThisMachineIsRefused) {
  ServerOptions options = TestServer::server_options();
  options.service.local_names_only = true;
  serve(options);
  EXPECT_EQ(ask("GET", "/v1/models").status, 403);  // to the host "test"
  const HttpReply page = ask("GET", "/v1/models", "", "Origin: http://test\r\n");
  EXPECT_EQ(page.status, 403);
  EXPECT_NE(page.body.find("host_not_allowed"), std::string::npos);
  options.service.allowed_origins = {"http://test"};
  serve(options);
  EXPECT_EQ(ask("GET", "/v1/models").status, 200);
}

TEST_F(ServerHttp, ABrowserMayAskBeforehandWhatItMaySend) {
  ServerOptions options = TestServer::server_options();
  options.service.allowed_origins = {"*"};
  options.service.api_keys = {"sesame"};
  serve(options);
  // As the JavaScript client of OpenAI asks from a page.
  const HttpReply reply =
      ask("OPTIONS", "/v1/chat/completions", "",
          "Origin: https://any.example\r\nAccess-Control-Request-Method: POST\r\n"
          "Access-Control-Request-Headers: authorization,content-type,x-stainless-lang\r\n");
  EXPECT_EQ(reply.status, 204);
  EXPECT_EQ(reply.header("access-control-allow-origin"), "*");
  EXPECT_NE(reply.header("access-control-allow-methods").find("POST"), std::string::npos);
  for (const char* header : {"authorization", "content-type", "x-stainless-lang"})
    EXPECT_NE(reply.header("access-control-allow-headers").find(header), std::string::npos) << header;
}

TEST_F(ServerHttp, MoreAnswersThanItTakesAreRefusedForNow) {
  ServerOptions options = TestServer::server_options();
  options.service.limits.open_answers = 2;
  serve(options);
  const Running first = start_endless(), second = start_endless();
  const HttpReply busy = post("/v1/completions", {{"prompt", "Hi"}});
  EXPECT_EQ(busy.status, 429);
  EXPECT_EQ(busy.error("type"), "rate_limit_error");
  EXPECT_EQ(busy.header("retry-after"), "1");
  const HttpReply never = post("/v1/completions", {{"prompt", "Hi"}, {"n", 3}});
  EXPECT_EQ(never.status, 400);  // trying again would not help
  EXPECT_EQ(never.error("param"), "n");
  first.client->close();
  wait_until("/requests", [](const Json& state) { return state["running"] == 1; });
  while (post("/v1/completions", {{"prompt", "Hi"}, {"max_tokens", 1}}).status != 200) {
  }
}

TEST_F(ServerHttp, ARequestThatIsNotDoneInTimeIsToldSo) {
  Json late = {
      {"prompt", "Hi"}, {"max_tokens", 100000}, {"ignore_eos", true}, {"quire", {{"deadline_ms", 30}}}};
  const HttpReply reply = post("/v1/completions", late);
  EXPECT_EQ(reply.status, 504);
  EXPECT_EQ(reply.error("code"), "deadline_exceeded");
  EXPECT_EQ(reply.header("x-should-retry"), "false");  // OpenAI's clients would try twice more
  late["stream"] = true;
  HttpClient client(port());
  client.request("POST", "/v1/completions", late.dump());
  if (client.read_head().status == 504) return;  // it had not begun yet
  std::string last, before;
  while (const auto event = client.read_event()) before = std::exchange(last, *event);
  EXPECT_EQ(parse_json(before, "the last event")["error"]["code"], "deadline_exceeded");
}

TEST_F(ServerHttp, StoppingTellsTheRunningAndRefusesTheNew) {
  const Running running = start_endless();
  HttpClient idle(port());
  idle.request("GET", "/health");
  EXPECT_EQ(idle.read_reply().status, 200);
  std::thread stopping([&] { server().stop(); });
  std::string last, before;
  while (const auto event = running.client->read_event()) before = std::exchange(last, *event);
  stopping.join();
  EXPECT_EQ(parse_json(before, "the last event")["error"]["code"], "cancelled");
  EXPECT_EQ(last, "[DONE]");
  EXPECT_TRUE(idle.at_end());
}

}  // namespace
}  // namespace quire
