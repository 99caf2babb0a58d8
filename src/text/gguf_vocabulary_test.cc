#include "text/gguf_vocabulary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "text/tokenizer.h"

namespace quire {
namespace {

using testing::ElementsAre;

// Letters, a space, and what merges to "the" and " the".
GgufVocabulary small_bpe(std::string pre) {
  GgufVocabulary vocabulary;
  vocabulary.model = "gpt2";
  vocabulary.pre = std::move(pre);
  vocabulary.tokens = {"<|end|>", "t", "h", "e", "Ġ", "he", "the", "Ġthe", "<tool>", "1", "2"};
  vocabulary.token_types = {3, 1, 1, 1, 1, 1, 1, 1, 4, 1, 1};
  vocabulary.merges = {"h e", "t he", "Ġ the"};
  vocabulary.eos_token_id = 0;
  return vocabulary;
}

TEST(GgufVocabulary, MergesInTheOrderOfTheList) {
  const Tokenizer tokenizer(tokenizer_spec_from_gguf(small_bpe("gpt-2")));
  EXPECT_THAT(tokenizer.encode("the the"), ElementsAre(6, 7));
  EXPECT_EQ(tokenizer.decode(std::vector<TokenId>{6, 7}), "the the");
}

TEST(GgufVocabulary, ParsesControlTokensOnlyWhenAskedAndUserDefinedOnesAlways) {
  const Tokenizer tokenizer(tokenizer_spec_from_gguf(small_bpe("gpt-2")));
  EXPECT_THAT(tokenizer.encode("the<tool>he"), ElementsAre(6, 8, 5));
  EXPECT_THAT(tokenizer.encode("<|end|>"), ElementsAre(3));  // of its letters only one has a token
  EXPECT_THAT(tokenizer.encode("<|end|>", {.parse_special = true}), ElementsAre(0));
}

TEST(GgufVocabulary, NamesAnUnknownPretokenizer) {
  try {
    tokenizer_spec_from_gguf(small_bpe("no-such-thing"));
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("no-such-thing"));
    EXPECT_THAT(error.what(), testing::HasSubstr("llama-bpe"));
  }
}

}  // namespace
}  // namespace quire
