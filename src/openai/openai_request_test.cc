#include "openai/openai_request.h"

#include <filesystem>
#include <fstream>
#include <iterator>

#include <gtest/gtest.h>

#include "openai/any_body.h"

namespace quire {
namespace {

Ask completion(const char* body) {
  return parse_completion(parse_body(body), byte_model());
}

TEST(OpenaiRequest, EveryBodyOfTheCorpusIsUnderstoodOrRefused) {
  int understood = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(QUIRE_SOURCE_DIR "/tests/corpus/openai_request")) {
    std::ifstream file(entry.path(), std::ios::binary);
    understood += understand(std::string{std::istreambuf_iterator<char>(file), {}});
  }
  EXPECT_GT(understood, 10);
}

TEST(OpenaiRequest, FieldsThatAreMissingOrNullHaveTheirDefaults) {
  for (const char* body :
       {R"({"prompt":"x"})",
        R"({"prompt":"x","n":null,"max_tokens":null,"stop":null,"stream":null,"logprobs":null})"}) {
    const Ask ask = completion(body);
    EXPECT_EQ(ask.choices, 1u);
    EXPECT_EQ(ask.request.max_tokens, 16u);
    EXPECT_TRUE(ask.request.stop.empty());
    EXPECT_FALSE(ask.stream || ask.request.logprobs || ask.echo || ask.report);
  }
}

TEST(OpenaiRequest, ATextThatSpellsASpecialTokenIsText) {
  const Ask ask = completion(R"({"prompt":"</s>"})");
  EXPECT_EQ(ask.prompts[0], (std::vector<TokenId>{'<', '/', 's', '>'}));
}

}  // namespace
}  // namespace quire
