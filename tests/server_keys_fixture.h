#pragma once

#include <filesystem>

#include <unistd.h>

#include "server_fixture.h"

namespace quire {

// A server with two API keys beside each other, and what their owners ask.
class ServerKeys : public ServerTest {
 protected:
  ServerKeys() : options_(TestServer::server_options()) {
    options_.service.api_keys = {"key of ann", "key of bob"};
    serve(options_);
  }
  ~ServerKeys() override { std::filesystem::remove_all(folder_); }

  static constexpr const char* kAnn = "Authorization: Bearer key of ann\r\n";
  static constexpr const char* kBob = "Authorization: Bearer key of bob\r\n";

  HttpReply as(const char* who, const std::string& method, const std::string& target,
               const Json& body = nullptr) {
    return ask(method, target, body.is_null() ? "" : body.dump(), who);
  }
  Json good_as(const char* who, const std::string& method, const std::string& target,
               const Json& body = nullptr) {
    return good(as(who, method, target, body));
  }
  // A prompt of so many tokens that no other begins like.
  static std::vector<TokenId> secret(uint32_t tokens = 100, uint32_t first = 0) {
    std::vector<TokenId> ids = {40 + first, 1};
    while (ids.size() < tokens) ids.push_back(TokenId(4 + (ids.size() * ids.size() * 7 + first) % 300));
    return ids;
  }
  Json answer(const char* who, const std::vector<TokenId>& prompt, Json fields = Json::object()) {
    fields["prompt"] = prompt;
    fields["ignore_eos"] = true;
    if (!fields.contains("max_tokens")) fields["max_tokens"] = 2;
    return good_as(who, "POST", "/v1/completions", fields);
  }
  static int cached(const Json& answer) {
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"].get<int>();
  }
  int looked_up(const char* who, const std::vector<TokenId>& prompt, Json fields = Json::object()) {
    fields["prompt"] = prompt;
    return good_as(who, "POST", "/kv/lookup", fields)["cached_tokens"].get<int>();
  }
  // One of ann's that runs until it is cancelled; its first token has come.
  Running endless_of_ann() {
    Running running{std::make_unique<HttpClient>(port()), ""};
    const Json body = {{"prompt", secret()},
                       {"stream", true},
                       {"ignore_eos", true},
                       {"max_tokens", TestServer::kContext / 2}};
    running.client->request("POST", "/v1/completions", body.dump(), kAnn);
    running.id = running.client->read_head().header("x-request-id");
    EXPECT_TRUE(running.client->read_event().has_value());
    return running;
  }
  // What is said of another's request is what is said of one that never was, but for its id.
  void expect_unknown(const std::string& method, const std::string& before, const std::string& id,
                      const std::string& after, const Json& body = nullptr) {
    const std::string nothing = "cmpl-00000000000000000000000000000000";
    const HttpReply foreign = as(kBob, method, before + id + after, body);
    const HttpReply unknown = as(kBob, method, before + nothing + after, body);
    EXPECT_EQ(foreign.status, 404) << method << " " << before + id + after << ": " << foreign.body;
    std::string said = foreign.body;
    if (said.find(id) != std::string::npos) said.replace(said.find(id), id.size(), nothing);
    EXPECT_EQ(said, unknown.body);
  }
  void serve_from_folder(const std::string& restore) {
    std::filesystem::create_directories(folder_);
    options_.kv_folder = folder_;
    options_.kv_restore = restore;
    serve(options_);
  }

  ServerOptions options_;
  std::string folder_ = testing::TempDir() + "/quire_server_keys_" + std::to_string(::getpid());
};
}  // namespace quire
