#include "openai/openai_request.h"

#include <filesystem>
#include <fstream>
#include <iterator>

#include <gtest/gtest.h>

#include "openai/any_body.h"
#include "openai/api_error.h"

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

std::string list_of(size_t count) {
  std::string list = "[1";
  for (size_t i = 1; i < count; ++i) list += ",1";
  return list + "]";
}

// What a body is refused with: its code, or "" if it is not.
std::string refusal(const std::string& body) {
  try {
    completion(body.c_str());
  } catch (const ApiError& error) {
    return error.json()["error"]["code"].get<std::string>();
  }
  return "";
}

TEST(OpenaiRequest, ListsHaveAnEnd) {
  EXPECT_EQ(completion((R"({"prompt":"x","stop_token_ids":)" + list_of(1024) + "}").c_str())
                .request.stop_tokens.size(),
            1024u);
  EXPECT_EQ(refusal(R"({"prompt":"x","stop_token_ids":)" + list_of(1025) + "}"), "invalid_value");
  std::string biases;
  for (int i = 0; i < 1025; ++i) biases += (i == 0 ? "\"0" : ",\"0") + std::to_string(i % 200) + "\":1";
  EXPECT_EQ(refusal(R"({"prompt":"x","logit_bias":{)" + biases + "}}"),
            "");  // a name that comes again replaces itself
  biases.clear();
  for (int i = 0; i < 1025; ++i) biases += (i == 0 ? "\"" : ",\"") + std::string(size_t(i), '0') + "1\":1";
  EXPECT_EQ(refusal(R"({"prompt":"x","logit_bias":{)" + biases + "}}"), "invalid_value");
}

TEST(OpenaiRequest, APromptThatIsTooLongIsRefusedWithoutBeingReadToItsEnd) {
  EXPECT_EQ(refusal(R"({"prompt":")" + std::string(4095, 'x') + R"("})"), "");
  EXPECT_EQ(refusal(R"({"prompt":")" + std::string(4096, 'x') + R"("})"), "context_length_exceeded");
  EXPECT_EQ(refusal(R"({"prompt":)" + list_of(4095) + "}"), "");
  EXPECT_EQ(refusal(R"({"prompt":)" + list_of(4096) + "}"), "context_length_exceeded");
  // After too many tokens one that does not exist is not seen any more.
  EXPECT_EQ(refusal(R"({"prompt":[999999,)" + list_of(5000).substr(1) + "}"), "context_length_exceeded");
}

TEST(OpenaiRequest, ABodyThatWouldGrowManyTimesIsRefused) {
  std::string objects = "{}";
  while (objects.size() < (2 << 20)) objects += "," + objects;
  EXPECT_EQ(refusal(R"({"prompt":"x","metadata":[)" + objects + "]}"), "invalid_json");
}

TEST(OpenaiRequest, ATextThatSpellsASpecialTokenIsText) {
  const Ask ask = completion(R"({"prompt":"</s>"})");
  EXPECT_EQ(ask.prompts[0], (std::vector<TokenId>{'<', '/', 's', '>'}));
}

}  // namespace
}  // namespace quire
