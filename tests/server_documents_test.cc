// A document that many ask, and a cache that is chosen by what was measured, over the API.
#include <filesystem>

#include <gmock/gmock.h>
#include <unistd.h>

#include "eval/keep_chooser.h"
#include "eval/kv_curve.h"
#include "server_fixture.h"

namespace quire {
namespace {

class ServerDocuments : public ServerTest {
 protected:
  static std::string text() {
    std::string text;
    for (int i = 0; i < 100; ++i) text += "so " + std::to_string(i) + " it went, ";
    return text;
  }
  static Json asked(const std::string& question, Json quire = {{"kv_keep", "50%"}, {"kv_policy", "zip"}}) {
    quire["report"] = true;
    quire["kv_document"] = text();
    return {{"messages", {{{"role", "user"}, {"content", question}}}},
            {"max_tokens", 4},
            {"temperature", 0},
            {"quire", quire}};
  }
  Json answer(const Json& body) { return good(post("/v1/chat/completions", body)); }
};

TEST_F(ServerDocuments, AreComputedOnceAndSaidByName) {
  const Json body = asked("Where did it go?");
  EXPECT_FALSE(good(post("/kv/lookup", body))["document"]["cached"].get<bool>());
  const Json first = answer(body);
  const std::string name = first["quire"]["kv"]["document"];
  EXPECT_THAT(name, testing::StartsWith("zip-"));
  EXPECT_EQ(first["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
  const Json looked = good(post("/kv/lookup", asked("And then?")))["document"];
  EXPECT_TRUE(looked["cached"].get<bool>());
  EXPECT_EQ(looked["name"], name);
  const Json next = answer(asked("And then?"));
  EXPECT_EQ(next["quire"]["kv"]["document"], name);
  EXPECT_EQ(next["usage"]["prompt_tokens_details"]["cached_tokens"], looked["tokens"]);
  EXPECT_EQ(text_of(answer(body)), text_of(first)) << "the same bits, begun with what was left";
  const Json documents = good(get("/kv"))["documents"];
  ASSERT_EQ(documents.size(), 1u);
  EXPECT_EQ(documents[0]["name"], name);
  EXPECT_EQ(documents[0]["rows"], looked["rows"]);
  EXPECT_GT(documents[0]["bytes"].get<int>(), 0);
}

TEST_F(ServerDocuments, AreRefusedInASentenceWhereTheyCannotBe) {
  const auto refused = [&](const std::string& target, const Json& body) {
    const HttpReply reply = post(target, body);
    EXPECT_EQ(reply.status, 400) << reply.body;
    EXPECT_EQ(reply.error("param"), "quire.kv_document") << reply.body;
  };
  refused("/v1/chat/completions", asked("Hi", Json::object()));
  refused("/v1/completions", {{"prompt", "Hi"}, {"quire", {{"kv_keep", "50%"}, {"kv_document", "x"}}}});
  refused("/kv/pin", asked("Hi"));
  Json none = asked("Hi");
  none["messages"][0]["role"] = "system";
  refused("/v1/chat/completions", none);
  none = asked("Hi");
  none["quire"]["kv_document"] = "";
  refused("/v1/chat/completions", none);
}

TEST_F(ServerDocuments, AndPromptsKeepWhatACurveSaysWhereNobodySaysHowMuch) {
  const LoadedModel house(QUIRE_SOURCE_DIR "/models/house/house.gguf", LoadOptions{.threads = 1});
  const std::string path = testing::TempDir() + "/quire_auto_" + std::to_string(::getpid()) + ".json";
  const auto point = [](std::optional<PruningPolicy> policy, double share, bool sees_question,
                        uint32_t kept) {
    return KvCurve::Point{"f16", policy, share, sees_question, {kept, kept}, 100 * share};
  };
  write_kv_curve(path,
                 {.tokens = 1024,
                  .asked = {50, 50},
                  .answered = {50, 50},
                  .points = {point({}, 1, true, 50), point(PruningPolicy::snap, 0.5, true, 49),
                             point(PruningPolicy::snap, 0.3, true, 40),
                             point(PruningPolicy::streaming, 0.7, false, 50)}},
                 house);
  const KvCurve curve = read_kv_curve(path, house.file());
  std::filesystem::remove(path);
  const ModelText text = load_model_text(golden_folder("llama3"));
  const KeepChooser chooser(curve, {}, "f16", text.tokenizer);
  ServerOptions options = TestServer::server_options();
  options.choose_kept = [&](std::span<const TokenId> prompt) { return chooser.choose(prompt, 0.98).pruning; };
  serve(options);
  const auto kv = [&](const std::string& end, Json quire) {
    quire["report"] = true;
    return chat({{"max_tokens", 2}, {"quire", quire}}, this->text() + end)["quire"]["kv"];
  };
  for (const Json& quire : {Json::object(), Json{{"kv_keep", "auto"}}}) {
    const Json seen = kv("Where?", quire);
    EXPECT_EQ(seen["policy"], "snap");
    EXPECT_NEAR(seen["kept"].get<double>(), 0.5, 0.01);
    EXPECT_NEAR(seen["measured_answers"].get<double>(), 0.98, 1e-6);
    EXPECT_GT(seen["bytes"].get<int>(), 0);
    const Json hidden = kv("So it was", quire);
    EXPECT_EQ(hidden["policy"], "streaming");
    EXPECT_NEAR(hidden["kept"].get<double>(), 0.7, 0.01);
    EXPECT_GT(hidden["bytes"].get<int>(), seen["bytes"].get<int>());
  }
  EXPECT_FALSE(kv("Where?", {{"kv_keep", "100%"}}).contains("policy"));
  const Json of_document = answer(asked("Where?", {{"kv_keep", "auto"}}))["quire"]["kv"];
  EXPECT_EQ(of_document["policy"], "streaming") << "a document has no question, whatever is asked after it";
}

}  // namespace
}  // namespace quire
