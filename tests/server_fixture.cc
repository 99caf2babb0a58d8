#include "server_fixture.h"

#include "base/mapped_file.h"

namespace quire {
namespace {

// Of /openapi.json: what is said of the replies of a method of a path; nothing if it knows none.
const Json* described_replies(const std::string& method, const std::string& path) {
  static const Json all = [] {
    const MappedFile file(QUIRE_SOURCE_DIR "/src/server/web/openapi.json");
    return parse_json({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()},
                      "openapi.json");
  }();
  const std::string wanted = method == "POST" ? "post" : method == "DELETE" ? "delete" : "get";
  for (const auto& [name, methods] : all["paths"].items()) {
    const size_t open = name.find('{'), close = name.find('}');
    const bool same = open == std::string::npos ? path == name
                                                : path.size() > name.size() - (close + 1 - open) &&
                                                      path.starts_with(name.substr(0, open)) &&
                                                      path.ends_with(name.substr(close + 1));
    if (same && methods.contains(wanted)) return &methods[wanted]["responses"];
  }
  return nullptr;
}

// Whatever the server says is said of it in /openapi.json, but for what any HTTP server says.
void expect_described(const std::string& method, const std::string& target, int status) {
  if (method != "GET" && method != "POST" && method != "DELETE") return;
  const Json* replies = described_replies(method, target.substr(0, target.find('?')));
  if (replies == nullptr || status == 417 || status == 431) return;
  EXPECT_TRUE(replies->contains(std::to_string(status)))
      << method << " " << target << " was answered with " << status << ", which openapi.json does not name";
}

}  // namespace

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
  const HttpReply reply =
      client.read_reply(method == "HEAD" ? HttpClient::Body::stays : HttpClient::Body::comes);
  expect_described(method, target, reply.status);
  return reply;
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
