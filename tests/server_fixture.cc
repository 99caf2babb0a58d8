#include "server_fixture.h"

namespace quire {

std::string StreamReply::text(uint32_t choice) const {
  std::string text;
  for (const Json& event : events) {
    for (const Json& entry : event["choices"]) {
      if (entry["index"] != choice) continue;
      if (entry.contains("text")) text += entry["text"].get<std::string>();
      if (entry.contains("delta")) text += entry["delta"].value("content", "");
    }
  }
  return text;
}

std::string StreamReply::finish_reason(uint32_t choice) const {
  std::string reason;
  for (const Json& event : events) {
    for (const Json& entry : event["choices"]) {
      if (entry["index"] != choice) continue;
      EXPECT_EQ(reason, "") << "something came after the finish_reason";
      if (entry["finish_reason"].is_string()) reason = entry["finish_reason"].get<std::string>();
    }
  }
  return reason;
}

HttpReply ServerTest::ask(const std::string& method, const std::string& target, const std::string& body,
                          const std::string& headers) {
  HttpClient client(port());
  client.request(method, target, body, headers + "Connection: close\r\n");
  return client.read_reply(method == "HEAD" ? HttpClient::Body::stays : HttpClient::Body::comes);
}

StreamReply ServerTest::stream(const std::string& target, Json fields) {
  fields["stream"] = true;
  HttpClient client(port());
  client.request("POST", target, fields.dump());
  StreamReply reply;
  reply.head = client.read_head();
  EXPECT_EQ(reply.head.status, 200);
  EXPECT_EQ(reply.head.header("content-type"), "text/event-stream");
  while (const auto event = client.read_event()) {
    EXPECT_FALSE(reply.done) << "after [DONE]: " << *event;
    if (*event == "[DONE]") {
      reply.done = true;
    } else {
      reply.events.push_back(parse_json(*event, "an event"));
    }
  }
  EXPECT_TRUE(reply.done);
  return reply;
}

ServerTest::Running ServerTest::start_endless(Json fields, const Json& prompt) {
  fields["prompt"] = prompt;
  fields["stream"] = true;
  fields["ignore_eos"] = true;
  fields["max_tokens"] = TestServer::kContext / 2;
  Running running{std::make_unique<HttpClient>(port()), ""};
  running.client->request("POST", "/v1/completions", fields.dump());
  running.id = running.client->read_head().header("x-request-id");
  EXPECT_TRUE(running.client->read_event().has_value());
  return running;
}

double ServerTest::metric(const std::string& name) {
  const std::string text = get("/metrics").body;
  for (const char* after : {"{", " "}) {
    const size_t begin = text.find("\n" + name + after);
    if (begin == std::string::npos) continue;
    const size_t end = text.find('\n', begin + 1);
    return std::stod(text.substr(text.rfind(' ', end) + 1));
  }
  return -1;
}

}  // namespace quire
