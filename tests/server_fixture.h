#pragma once

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "engine/loaded_model.h"
#include "golden_model.h"
#include "http_client.h"
#include "server/server.h"

namespace quire {

// A server in this process, with a tiny model of random weights that computes thousands of tokens in a second and has
// room for answers that outlast any test.
class TestServer {
 public:
  static constexpr uint32_t kContext = 1 << 18;
  static ServerOptions server_options() {
    ServerOptions options;
    options.port = 0;
    options.grace_seconds = 0;
    options.service.limits.open_answers = 64;
    options.service.version = "1.2.3";
    options.service.kv_format = "f16";
    options.service.fingerprint = "test";
    return options;
  }
  static EngineOptions engine_options() {
    EngineOptions options;
    options.context = kContext;
    options.max_sequences = 16;
    options.prefill_chunk = 64;
    options.kv_bytes = size_t(128) << 20;
    return options;
  }

  explicit TestServer(const ServerOptions& options = server_options(),
                      const EngineOptions& engine = engine_options(), const std::string& name = "tiny")
      : model_(golden_folder("llama3"), {.context = kContext, .threads = 1, .kernels = "auto"}),
        server_(model_, std::make_unique<Engine>(model_.engine_model(), engine), name,
                {.read_gb_s = 10, .int8_gops = 100, .f32_gflops = 50}, options),
        thread_([this] { server_.run(); }) {}
  ~TestServer() { stop(); }
  void stop() {
    if (!thread_.joinable()) return;
    server_.stop();
    thread_.join();
  }

  uint16_t port() const { return server_.port(); }
  const ModelText& text() const { return model_.text(); }

 private:
  LoadedModel model_;
  Server server_;
  std::thread thread_;
};

// A stream as its events, and what they come to.
struct StreamReply {
  HttpReply head;
  std::vector<Json> events;  // all but the last word
  bool done = false;         // "[DONE]" came, and nothing after it

  // The text of one choice, of a chat or a completion.
  std::string text(uint32_t choice = 0) const;
  std::string finish_reason(uint32_t choice = 0) const;
};

class ServerTest : public testing::Test {
 protected:
  // A server with other options, instead of the usual one.
  void serve(const ServerOptions& options, const EngineOptions& engine = TestServer::engine_options(),
             const std::string& name = "tiny") {
    server_ = std::make_unique<TestServer>(options, engine, name);
  }
  TestServer& server() {
    if (!server_) server_ = std::make_unique<TestServer>();
    return *server_;
  }
  uint16_t port() { return server().port(); }

  HttpReply ask(const std::string& method, const std::string& target, const std::string& body = "",
                const std::string& headers = "");
  HttpReply get(const std::string& target) { return ask("GET", target); }
  HttpReply post(const std::string& target, const Json& body) { return ask("POST", target, body.dump()); }
  // One that must be answered.
  Json good(const HttpReply& reply) {
    EXPECT_EQ(reply.status, 200) << reply.body;
    return reply.json();
  }
  Json complete(Json fields, const Json& prompt = "Once upon a time") {
    fields["prompt"] = prompt;
    return good(post("/v1/completions", fields));
  }
  Json chat(Json fields, const std::string& words = "Hello") {
    fields["messages"] = {{{"role", "user"}, {"content", words}}};
    return good(post("/v1/chat/completions", fields));
  }
  StreamReply stream(const std::string& target, Json fields);
  StreamReply stream_completion(Json fields, const Json& prompt = "Once upon a time") {
    fields["prompt"] = prompt;
    return stream("/v1/completions", std::move(fields));
  }
  StreamReply stream_chat(Json fields, const std::string& words = "Hello") {
    fields["messages"] = {{{"role", "user"}, {"content", words}}};
    return stream("/v1/chat/completions", std::move(fields));
  }
  // A stream that runs until its client leaves; its first token has come.
  struct Running {
    std::unique_ptr<HttpClient> client;
    std::string id;
  };
  Running start_endless(Json fields = Json::object(), const Json& prompt = "Once upon a time");
  // Asks until what it is asked of GET `target` is so.
  template <class So>
  Json wait_until(const std::string& target, So so) {
    while (true) {
      Json state = good(get(target));
      if (so(state)) return state;
    }
  }
  // The value of a metric's first sample; -1 if there is none.
  double metric(const std::string& name);

 private:
  std::unique_ptr<TestServer> server_;
};

inline std::string text_of(const Json& response, size_t choice = 0) {
  const Json& entry = response["choices"][choice];
  return entry.contains("text") ? entry["text"].get<std::string>()
                                : entry["message"]["content"].get<std::string>();
}

}  // namespace quire
