// What comes through the server is what the engine itself answers.
#include <atomic>
#include <functional>
#include <tuple>

#include "server_fixture.h"

namespace quire {
namespace {

class ServerAnswers : public ServerTest {
 protected:
  struct Case {
    const char* prompt;
    float temperature;
    uint64_t seed;
  };
  static constexpr Case kCases[] = {
      {"Once upon a time", 0, 0},
      {"Once upon a time", 0.8f, 7},
      {"Once upon", 1.5f, 8},
      {"The long and winding road that leads to a door and then to another door", 0, 0}};

  static constexpr uint32_t kTokens = 120;

  Request request_for(const char* prompt) {
    Request request;
    request.prompt = alone_.text().tokenizer.encode(prompt);
    request.sampling = alone_.text().sampling_defaults;
    request.max_tokens = kTokens;
    request.logprobs = true;
    return request;
  }
  Answer offline(const Request& request) {
    EngineOptions options = TestServer::engine_options();
    options.sharing = false;
    return Engine(alone_.engine_model(), options).run(request);
  }
  Answer offline(const Case& c) {
    Request request = request_for(c.prompt);
    request.sampling.temperature = c.temperature;
    request.sampling.seed = c.seed;
    return offline(request);
  }
  void check(const Case& c) {
    const Answer expected = offline(c);
    const Json fields = {
        {"temperature", c.temperature}, {"seed", c.seed}, {"max_tokens", kTokens}, {"logprobs", 0}};
    const Json whole = complete(fields, c.prompt);
    EXPECT_EQ(text_of(whole), expected.text);
    EXPECT_EQ(whole["usage"]["completion_tokens"], expected.tokens.size());
    EXPECT_EQ(whole["choices"][0]["finish_reason"], name(expected.finish_reason));
    const Json& logprobs = whole["choices"][0]["logprobs"]["token_logprobs"];
    ASSERT_EQ(logprobs.size(), expected.logprobs.size());
    for (size_t i = 0; i < expected.logprobs.size(); ++i)
      EXPECT_EQ(logprobs[i].get<float>(), expected.logprobs[i]) << "token " << i;  // to the last bit
    EXPECT_EQ(stream_completion(fields, c.prompt).text(), expected.text);
  }

  LoadedModel alone_{golden_folder("llama3"),
                     {.context = TestServer::kContext, .threads = 1, .kernels = "auto"}};
};

TEST_F(ServerAnswers, AreThoseOfTheEngineAlone) {
  for (const Case& c : kCases) check(c);
}

TEST_F(ServerAnswers, AreThoseOfTheEngineAloneWhileEightOthersRun) {
  std::vector<Running> others;
  for (uint32_t i = 0; i < 8; ++i)
    others.push_back(start_endless({{"seed", i}, {"temperature", 1}}, std::string(10 * i + 5, 'x')));
  for (const Case& c : kCases) check(c);
  EXPECT_EQ(good(get("/requests"))["running"], 8);
}

TEST_F(ServerAnswers, FollowEveryFieldOfSampling) {
  using Change = std::function<void(SamplingOptions&)>;
  const std::vector<std::tuple<const char*, Json, Change>> fields = {
      {"temperature", 1.7, [](SamplingOptions& s) { s.temperature = 1.7f; }},
      {"top_k", 3, [](SamplingOptions& s) { s.top_k = 3; }},
      {"top_p", 0.3, [](SamplingOptions& s) { s.top_p = 0.3f; }},
      {"min_p", 0.5, [](SamplingOptions& s) { s.min_p = 0.5f; }},
      {"typical_p", 0.2, [](SamplingOptions& s) { s.typical = 0.2f; }},
      {"repetition_penalty", 1.5, [](SamplingOptions& s) { s.repetition_penalty = 1.5f; }},
      {"presence_penalty", 1.5, [](SamplingOptions& s) { s.presence_penalty = 1.5f; }},
      {"frequency_penalty", 1.5, [](SamplingOptions& s) { s.frequency_penalty = 1.5f; }},
      {"logit_bias",
       {{"70", 3}, {"71", -2.5}},
       [](SamplingOptions& s) {
         s.logit_bias = {{70, 3}, {71, -2.5f}};
       }},
      {"seed", 6, [](SamplingOptions& s) { s.seed = 6; }}};
  Request plain = request_for("Once upon a time");
  plain.sampling.temperature = 0.9f;
  plain.sampling.seed = 5;
  const Answer unchanged = offline(plain);
  for (const auto& [field, value, change] : fields) {
    Request changed = plain;
    change(changed.sampling);
    const Answer expected = offline(changed);
    EXPECT_NE(expected.tokens, unchanged.tokens) << field;
    Json ask = {{"temperature", 0.9}, {"seed", 5}, {"max_tokens", kTokens}};
    ask[field] = value;
    EXPECT_EQ(text_of(complete(ask)), expected.text) << field;
  }
}

TEST_F(ServerAnswers, AreTheSameForManyClientsAtOnce) {
  std::vector<Answer> expected;
  for (const Case& c : kCases) expected.push_back(offline(c));
  const uint16_t port = this->port();
  std::atomic<int> right = 0;
  std::vector<std::thread> clients;
  for (int t = 0; t < 8; ++t) {
    clients.emplace_back([&, t] {
      HttpClient client(port);
      for (size_t i = 0; i < std::size(kCases); ++i) {
        const size_t n = (i + size_t(t)) % std::size(kCases);
        client.request("POST", "/v1/completions",
                       Json{{"prompt", kCases[n].prompt},
                            {"temperature", kCases[n].temperature},
                            {"seed", kCases[n].seed},
                            {"max_tokens", kTokens}}
                           .dump());
        right += text_of(client.read_reply().json()) == expected[n].text ? 1 : 0;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(right, 32);
}

}  // namespace
}  // namespace quire
