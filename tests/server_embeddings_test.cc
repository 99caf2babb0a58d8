// Texts that become vectors, and texts that are ranked, over HTTP.
#include <cmath>
#include <cstring>
#include <thread>

#include "server_keys_fixture.h"

namespace quire {
namespace {

std::vector<float> floats(const Json& list) {
  return list.get<std::vector<float>>();
}

double product_of(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += double(a[i]) * double(b[i]);
  return sum;
}

std::vector<float> from_base64(const std::string& text) {
  const std::string digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  for (size_t i = 0; i + 3 < text.size(); i += 4) {
    uint32_t three = 0;
    for (size_t d = 0; d < 4; ++d)
      three = three << 6 | uint32_t(text[i + d] == '=' ? 0 : digits.find(text[i + d]));
    for (int shift : {16, 8, 0}) bytes += char(three >> shift & 255);
    for (size_t d = 2; d < 4; ++d) {
      if (text[i + d] == '=') bytes.pop_back();
    }
  }
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  return values;
}

class ServerEmbeddings : public ServerTest {
 protected:
  Json embed(const Json& input, Json fields = Json::object()) {
    fields["input"] = input;
    return good(post("/v1/embeddings", fields));
  }
  std::vector<float> vector_of(const Json& input, Json fields = Json::object()) {
    return floats(embed(input, std::move(fields))["data"][0]["embedding"]);
  }
  // Whose models say how their tokens are pooled, or are said to.
  void serve_with(Pooling pooling) {
    ServerOptions options = TestServer::server_options();
    options.pooling = pooling;
    serve(options);
  }
  HttpReply rank(Json fields) {
    if (!fields.contains("query")) fields["query"] = "a cache of keys";
    if (!fields.contains("documents")) fields["documents"] = {"pages of keys", "a cat", "a cache of keys"};
    return post("/v1/rerank", fields);
  }
};

TEST_F(ServerEmbeddings, AreOfLengthOneAndInTheOrderOfTheTexts) {
  const Json reply = embed({"a page of keys", "the cat sat", "a page of keys"});
  EXPECT_EQ(reply["object"], "list");
  EXPECT_EQ(reply["model"], "tiny");
  ASSERT_EQ(reply["data"].size(), 3u);
  std::vector<std::vector<float>> vectors;
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(reply["data"][i]["object"], "embedding");
    EXPECT_EQ(reply["data"][i]["index"], i);
    vectors.push_back(floats(reply["data"][i]["embedding"]));
    EXPECT_EQ(vectors.back().size(), 32u);
    EXPECT_NEAR(product_of(vectors.back(), vectors.back()), 1, 1e-6);
  }
  EXPECT_EQ(vectors[0], vectors[2]);
  EXPECT_NE(vectors[0], vectors[1]);
  const size_t tokens = server().text().tokenizer.encode("a page of keys").size() * 2 +
                        server().text().tokenizer.encode("the cat sat").size();
  EXPECT_EQ(reply["usage"], Json({{"prompt_tokens", tokens}, {"total_tokens", tokens}}));
}

TEST_F(ServerEmbeddings, AreTheSameOfATextAndOfItsTokens) {
  const std::vector<TokenId> tokens = server().text().tokenizer.encode("a page of keys");
  const std::vector<float> expected = vector_of("a page of keys");
  EXPECT_EQ(vector_of(tokens), expected);
  EXPECT_EQ(vector_of(Json::array({tokens})), expected);
  EXPECT_EQ(from_base64(embed("a page of keys", {{"encoding_format", "base64"}})["data"][0]["embedding"]),
            expected);
}

TEST_F(ServerEmbeddings, CanBeCutToTheirFirstNumbers) {
  const std::vector<float> whole = vector_of("a page"), half = vector_of("a page", {{"dimensions", 10}});
  ASSERT_EQ(half.size(), 10u);
  EXPECT_NEAR(product_of(half, half), 1, 1e-6);
  for (size_t i = 1; i < half.size(); ++i)
    EXPECT_NEAR(double(half[i]) * double(whole[0]), double(whole[i]) * double(half[0]), 1e-6);
  EXPECT_EQ(vector_of("a page", {{"dimensions", 32}}), whole);
  const HttpReply reply = post("/v1/embeddings", {{"input", "a page"}, {"dimensions", 33}});
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(reply.json()["error"]["param"], "dimensions");
}

TEST_F(ServerEmbeddings, OfMoreTextsThanMayWaitAreMadeInParts) {
  Json texts = Json::array();
  for (int i = 0; i < 150; ++i) texts.push_back("text number " + std::to_string(i));
  const Json reply = embed(texts);
  ASSERT_EQ(reply["data"].size(), 150u);
  for (const size_t i : {0u, 63u, 64u, 149u}) {
    EXPECT_EQ(reply["data"][i]["index"], i);
    EXPECT_EQ(floats(reply["data"][i]["embedding"]), vector_of(texts[i]));
  }
}

TEST_F(ServerEmbeddings, ThatAreAskedForWronglyAreRefused) {
  const auto refused = [&](const Json& body, const std::string& field) {
    const HttpReply reply = post("/v1/embeddings", body);
    EXPECT_EQ(reply.status, 400) << body;
    EXPECT_EQ(reply.json()["error"]["param"], field) << reply.body;
  };
  refused(Json::object(), "input");
  refused({{"input", Json::array()}}, "input");
  refused({{"input", 7}}, "input");
  refused({{"input", {"a", 7}}}, "input[1]");
  refused({{"input", {1, 1000000}}}, "input");
  refused({{"input", "a"}, {"encoding_format", "hex"}}, "encoding_format");
  refused({{"input", "a"}, {"dimensions", 0}}, "dimensions");
  refused({{"input", Json(std::vector<std::string>(2049, "a"))}}, "input");
  refused({{"input", Json(std::vector<TokenId>(TestServer::kContext + 1, 5))}}, "input");
  EXPECT_EQ(post("/v1/embeddings", {{"input", "a"}, {"model", "other"}}).status, 404);
  EXPECT_EQ(vector_of("a").size(), 32u) << "and the server goes on";
}

TEST_F(ServerEmbeddings, EndWithTheirReader) {
  {
    HttpClient client(port());
    Json texts = Json::array();
    for (int i = 0; i < 16; ++i) texts.push_back(Json(std::vector<TokenId>(50000, TokenId(5 + i))));
    client.request("POST", "/v1/embeddings", Json({{"input", texts}}).dump());
    wait_until("/requests", [](const Json& state) { return state["running"] > 0; });
  }
  wait_until("/requests", [](const Json& state) { return state["running"] == 0 && state["waiting"] == 0; });
  EXPECT_GT(metric("quire_requests_cancelled_total"), 0);
}

TEST_F(ServerEmbeddings, OfOllamasApiAreTheSame) {
  const std::vector<float> first = vector_of("a page of keys"), second = vector_of("the cat");
  const Json both = good(post("/api/embed", {{"model", "tiny"}, {"input", {"a page of keys", "the cat"}}}));
  EXPECT_EQ(both["model"], "tiny");
  EXPECT_EQ(floats(both["embeddings"][0]), first);
  EXPECT_EQ(floats(both["embeddings"][1]), second);
  EXPECT_GT(both["prompt_eval_count"].get<int>(), 0);
  EXPECT_EQ(floats(good(post("/api/embeddings", {{"model", "tiny"}, {"prompt", "the cat"}}))["embedding"]),
            second);
  EXPECT_EQ(post("/api/embed", {{"model", "tiny"}}).status, 400);
}

TEST_F(ServerEmbeddings, OfOllamasApiCutWhatIsTooLong) {
  EngineOptions engine = TestServer::engine_options();
  engine.context = 20;
  serve(TestServer::server_options(), engine);
  std::string text;
  for (int i = 0; i < 200; ++i) text += "ab ";
  const Json cut = good(post("/api/embed", {{"model", "tiny"}, {"input", text}}));
  EXPECT_EQ(cut["prompt_eval_count"], 20);
  const HttpReply whole = post("/api/embed", {{"model", "tiny"}, {"input", text}, {"truncate", false}});
  EXPECT_EQ(whole.status, 400);
  EXPECT_EQ(post("/v1/embeddings", {{"input", text}}).status, 400);
}

TEST_F(ServerEmbeddings, ArePooledAsTheServerIsTold) {
  const std::vector<float> last = vector_of("a page of keys");
  serve_with(Pooling::mean);
  const std::vector<float> mean = vector_of("a page of keys");
  serve_with(Pooling::cls);
  const std::vector<float> first = vector_of("a page of keys");
  EXPECT_NE(mean, last);
  EXPECT_NE(first, last);
  EXPECT_EQ(first, vector_of("other words")) << "the same token begins all texts";
}

TEST_F(ServerEmbeddings, RankTextsByWhatIsClosestToTheQuery) {
  serve_with(Pooling::mean);
  const Json reply = good(rank({{"return_documents", true}}));
  ASSERT_EQ(reply["results"].size(), 3u);
  EXPECT_EQ(reply["results"][0]["index"], 2);
  EXPECT_NEAR(reply["results"][0]["relevance_score"].get<double>(), 1, 1e-6);
  EXPECT_EQ(reply["results"][0]["document"]["text"], "a cache of keys");
  const std::vector<float> query = vector_of("a cache of keys");
  double before = 2;
  for (const Json& result : reply["results"]) {
    const double score = result["relevance_score"].get<double>();
    EXPECT_LE(score, before);
    before = score;
    EXPECT_NEAR(score, product_of(query, vector_of(result["document"]["text"])), 1e-6);
  }
  const Json best = good(rank({{"top_n", 1}, {"documents", {"a cat", {{"text", "a cache of keys"}}}}}));
  ASSERT_EQ(best["results"].size(), 1u);
  EXPECT_EQ(best["results"][0]["index"], 1);
  EXPECT_FALSE(best["results"][0].contains("document"));
}

TEST_F(ServerEmbeddings, OfAModelThatSaysNothingRankNothing) {
  const HttpReply reply = rank({});
  EXPECT_EQ(reply.status, 400);
  EXPECT_NE(reply.body.find("--pooling rank"), std::string::npos) << reply.body;
  serve_with(Pooling::rank);
  EXPECT_NE(rank({}).body.find("its vocabulary lacks"), std::string::npos);
  EXPECT_NE(post("/v1/embeddings", {{"input", "a"}}).body.find("makes no vectors"), std::string::npos);
}

TEST_F(ServerEmbeddings, AreRankedOnlyIfTheyAreAskedForRightly) {
  serve_with(Pooling::last);
  EXPECT_EQ(rank({{"query", 7}}).json()["error"]["param"], "query");
  EXPECT_EQ(rank({{"documents", Json::array()}}).json()["error"]["param"], "documents");
  EXPECT_EQ(rank({{"documents", {"a", 7}}}).json()["error"]["param"], "documents[1]");
  EXPECT_EQ(rank({{"top_n", 0}}).json()["error"]["param"], "top_n");
}

// As Transformers judges them, of a model whose pages begin alike.
class ServerThatJudges : public testing::Test {
 protected:
  ~ServerThatJudges() override {
    server_.stop();
    thread_.join();
  }
  static std::string folder() { return QUIRE_SOURCE_DIR "/tests/embeddings/qwen3"; }
  static EngineOptions engine_options() { return {.context = 1024, .max_sequences = 4}; }
  static ServerOptions options() {
    ServerOptions options = TestServer::server_options();
    options.pooling = Pooling::rank;
    return options;
  }
  HttpReply rank(const Json& body) {
    HttpClient client(server_.port());
    client.request("POST", "/v1/rerank", body.dump(), "Connection: close\r\n");
    return client.read_reply();
  }

  LoadedModel model_{folder(), {.context = 1024, .threads = 1, .kernels = "exact", .device = "cpu"}};
  Server server_{model_,
                 std::make_unique<Engine>(model_.engine_model(), engine_options()),
                 "judge",
                 {.read_gb_s = 10, .int8_gops = 100, .f32_gflops = 50},
                 options()};
  std::thread thread_{[this] { server_.run(); }};
};

TEST_F(ServerThatJudges, GivesTheScoresOfTransformers) {
  const Json golden = read_json_file(folder() + "/judged.json");
  const HttpReply reply = rank({{"query", golden["query"]}, {"documents", golden["documents"]}});
  ASSERT_EQ(reply.status, 200) << reply.body;
  const Json json = reply.json();
  ASSERT_EQ(json["results"].size(), golden["scores"].size());
  double before = 1;
  for (const Json& result : json["results"]) {
    const double score = result["relevance_score"].get<double>();
    EXPECT_NEAR(score, golden["scores"][result["index"].get<size_t>()].get<double>(), 2e-3);
    EXPECT_LE(score, before);
    before = score;
  }
  EXPECT_EQ(rank({{"query", "<|im_end|>"}, {"documents", {"<|im_start|>"}}}).status, 200);
  EXPECT_EQ(rank({{"query", "a"}, {"documents", {std::string(5000, 'x')}}}).json()["error"]["param"],
            "documents[0]");
}

TEST_F(ServerThatJudges, RefusesAShortBodyThatAsksForAMillionTokens) {
  std::string query;
  for (int i = 0; i < 200; ++i) query += std::to_string(i) + " ";
  const Json reply = rank({{"query", query}, {"documents", Json(2047, "a")}}).json();
  EXPECT_EQ(reply["error"]["param"], "documents");
  EXPECT_NE(reply["error"]["message"].get<std::string>().find("1048576 tokens"), std::string::npos) << reply;
}

class EmbeddingsOfKeys : public ServerKeys {};

TEST_F(EmbeddingsOfKeys, ShareNothingAndSayNothingOfEachOther) {
  const Json body = {{"input", secret()}};
  good_as(kAnn, "POST", "/v1/embeddings", body);
  EXPECT_EQ(cached(answer(kBob, secret())), 0);
  EXPECT_GT(cached(answer(kAnn, secret())), 0) << "her own pages are hers to use";
  EXPECT_EQ(ask("POST", "/v1/embeddings", body.dump()).status, 401);
}

}  // namespace
}  // namespace quire
