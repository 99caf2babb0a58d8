#pragma once

#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "golden_model.h"
#include "server_in_process.h"

namespace quire {

// A server to which something is done that nobody else may notice, and of which nothing may be left.
class ServerFaults : public testing::Test {
 protected:
  // Tokens; nobody waits for the end of an endless answer.
  static constexpr uint32_t kContext = 32768, kEndless = 30000;
  static constexpr uint32_t kOpenAnswers = 12;

  ServerFaults() {
    options_.service.limits.open_answers = kOpenAnswers;
    engine_ = {.context = kContext, .max_sequences = 4, .prefill_chunk = 64};
    engine_.kv_bytes = size_t(64) << 20;
  }
  // What was done to the server is over: nothing is held or counted, and it answers as ever.
  void TearDown() override {
    if (!server_) return;
    wait_until([&] {
      const Json requests = server_->get("/requests").json();
      return requests["running"] == 0 && requests["waiting"] == 0 && server_->held_pages() == 0;
    });
    // As many answers as may be open at all: one that is still counted leaves no room for them.
    Json last = question("after all", 5);
    last["n"] = kOpenAnswers;
    RawResponse response;
    wait_until([&] { return (response = server_->complete(last)).status != 429; });
    ASSERT_EQ(response.status, 200) << response.body;
    EXPECT_EQ(response.json()["choices"][0]["text"], expected("after all", 5));
    EXPECT_EQ(server_->held_pages(), 0u);
    server_->stop();
  }

  ServerInProcess& start() {
    server_ = std::make_unique<ServerInProcess>(tiny_model(), engine_, options_);
    return *server_;
  }

  static Json question(const std::string& prompt, uint32_t tokens) {
    return {
        {"prompt", prompt}, {"max_tokens", tokens}, {"seed", 7}, {"temperature", 1}, {"ignore_eos", true}};
  }
  static Json streamed(const std::string& prompt, uint32_t tokens) {
    Json ask = question(prompt, tokens);
    ask["stream"] = true;
    return ask;
  }
  RawClient asking(const Json& body, int receive_bytes = 0) const {
    RawClient client(server_->port(), receive_bytes);
    client.ask("POST", "/v1/completions", body.dump());
    return client;
  }
  // One that asks for an endless stream and has read its beginning.
  RawClient listening(const std::string& prompt) const {
    RawClient client = asking(streamed(prompt, kEndless));
    const auto head = client.read_head();
    EXPECT_TRUE(head && head->status == 200);
    for (int parts = 0; parts < 3; ++parts) EXPECT_TRUE(client.read_part());
    return client;
  }
  // The answer of an engine that nobody else uses.
  static std::string expected(const std::string& prompt, uint32_t tokens) {
    Engine engine(oracle().engine_model(), {.context = 1024, .prefill_chunk = 64});
    Request request;
    request.prompt = oracle().text().tokenizer.encode(prompt);
    request.sampling = oracle().text().sampling_defaults;
    request.sampling.temperature = 1;
    request.sampling.seed = 7;
    request.ignore_end = true;
    request.max_tokens = tokens;
    return engine.run(request).text;
  }
  void expect_right_answer(RawClient& client, const std::string& prompt, uint32_t tokens) const {
    const auto response = client.read();
    ASSERT_TRUE(response) << prompt;
    ASSERT_EQ(response->status, 200) << response->body;
    if (response->header("content-type") != "text/event-stream") {
      EXPECT_EQ(response->json()["choices"][0]["text"], expected(prompt, tokens));
      return;
    }
    StreamText stream = read_events(response->body);
    EXPECT_TRUE(stream.done);
    EXPECT_EQ(stream.finish[0], "length");
    EXPECT_EQ(stream.texts[0], expected(prompt, tokens));
  }
  double cancelled() const { return server_->metric("quire_requests_cancelled_total"); }

  static const LoadedModel& tiny_model() {
    static const LoadedModel model(golden_folder("llama3"), {.context = kContext, .threads = 1});
    return model;
  }

  // For the answers that are expected: a model computes for one engine at a time.
  static const LoadedModel& oracle() {
    static const LoadedModel model(golden_folder("llama3"), {.context = kContext, .threads = 1});
    return model;
  }

  ServerOptions options_;
  EngineOptions engine_;
  std::unique_ptr<ServerInProcess> server_;
};
}  // namespace quire
