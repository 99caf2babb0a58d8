// Texts as vectors, as a user asks for them.
#include <sstream>

#include "base/json.h"
#include "cli_fixture.h"

namespace quire {
namespace {

class EmbedCommand : public Cli {
 protected:
  static std::vector<float> numbers(const std::string& line) {
    std::istringstream words(line);
    return {std::istream_iterator<float>(words), {}};
  }
  const std::string model_ = QUIRE_SOURCE_DIR "/tests/embeddings/qwen3";
};

TEST_F(EmbedCommand, PrintsALineForEachText) {
  const Outcome outcome = quire("embed --kernels exact -m " + model_ + " \"What is a KV cache?\" x");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const size_t end = outcome.out.find('\n');
  const Json golden = read_json_file(model_ + "/expected.json");
  const std::vector<float> first = numbers(outcome.out.substr(0, end));
  const auto expected = golden[0]["last"].get<std::vector<float>>();
  ASSERT_EQ(first.size(), expected.size());
  for (size_t i = 0; i < first.size(); ++i) EXPECT_NEAR(first[i], expected[i], 1e-3);
  EXPECT_EQ(numbers(outcome.out.substr(end + 1)).size(), expected.size());
}

TEST_F(EmbedCommand, TakesLinesAndSaysHowItPooled) {
  const Outcome outcome =
      quire("embed --json --pooling mean --dimensions 5 -m " + model_ + " -", "a page\nthe cat\n");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  std::istringstream lines(outcome.out);
  size_t count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const Json json = Json::parse(line);
    EXPECT_EQ(json["pooling"], "mean");
    EXPECT_EQ(json["embedding"].size(), 5u);
    EXPECT_GT(json["tokens"].get<int>(), 1);
  }
  EXPECT_EQ(count, 2u);
}

TEST_F(EmbedCommand, OfAGgufFileSaysHowItPooledToo) {
  const std::string file = path("embedding.gguf");
  ASSERT_EQ(quire("quantize -m " + model_ + " --type f16 -o " + file).code, 0);
  const Outcome outcome = quire("embed --json -m " + file + " x");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json json = Json::parse(outcome.out);
  EXPECT_EQ(json["pooling"], "last");
  EXPECT_EQ(json["tokens"], 2) << "with the end token that its tokenizer puts behind a text";
}

TEST_F(EmbedCommand, MoreNumbersThanThereAreIsWrongUsage) {
  EXPECT_EQ(quire("embed --dimensions 33 -m " + model_ + " x").code, 2);
  EXPECT_EQ(quire("embed --pooling max -m " + model_ + " x").code, 2);
}

}  // namespace
}  // namespace quire
