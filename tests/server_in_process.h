#pragma once

#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "raw_http_client.h"
#include "server/server.h"

namespace quire {

// Polls: the only limits of time are those of the server.
template <class Condition>
void wait_until(Condition condition) {
  while (!condition()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
}

// A server on a free port of this machine that runs on a thread of its own until it is stopped or destroyed.
class ServerInProcess {
 public:
  ServerInProcess(const LoadedModel& model, const EngineOptions& engine, ServerOptions options)
      : ServerInProcess(model, std::make_unique<Engine>(model.engine_model(), engine), std::move(options)) {}
  // With an engine that computes the model elsewhere.
  ServerInProcess(const LoadedModel& model, std::unique_ptr<Engine> engine, ServerOptions options)
      : server_(model, std::move(engine), "test", {}, on_free_port(std::move(options))),
        port_(server_.port()),
        thread_([this] { server_.run(); }) {}
  ~ServerInProcess() { stop(); }

  uint16_t port() const { return port_; }
  // Returns when the server has.
  void stop() {
    server_.stop();
    wait();
  }
  void begin_to_stop() { server_.stop(); }
  const std::string& lost() const { return server_.lost(); }
  void wait() {
    if (thread_.joinable()) thread_.join();
  }

  // One request on a connection of its own.
  RawResponse ask(std::string_view method, std::string_view path, std::string_view body = "",
                  std::string_view headers = "") const {
    RawClient client(port_);
    client.ask(method, path, body, headers);
    auto response = client.read();
    EXPECT_TRUE(response) << method << " " << path << " was not answered";
    return response.value_or(RawResponse());
  }
  RawResponse get(std::string_view path) const { return ask("GET", path); }
  RawResponse complete(const Json& body) const { return ask("POST", "/v1/completions", body.dump()); }

  uint64_t held_pages() const {
    uint64_t held = 0;
    const Json report = get("/kv").json();
    for (const Json& group : report["groups"]) held += group["held"].get<uint64_t>();
    return held;
  }
  double metric(const std::string& name) const {
    const std::string text = get("/metrics").body;
    const size_t line = text.find("\n" + name + "{");
    return line == std::string::npos ? 0 : std::stod(text.substr(text.find("} ", line) + 2));
  }

 private:
  static ServerOptions on_free_port(ServerOptions options) {
    options.host = "127.0.0.1";
    options.port = 0;
    return options;
  }

  Server server_;
  uint16_t port_;
  std::thread thread_;
};

}  // namespace quire
