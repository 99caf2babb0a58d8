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

GgufVocabulary small_unigram() {
  GgufVocabulary vocabulary;
  vocabulary.model = "t5";
  vocabulary.tokens = {"<pad>", "</s>", "<unk>", "\u2581", "a", "\u2581a", "ab", "b"};
  vocabulary.token_types = {3, 3, 2, 1, 1, 1, 1, 1};
  vocabulary.scores = {0, 0, 0, -2, -3, -2.5, -1, -4};
  vocabulary.add_space_prefix = true;
  return vocabulary;
}

TEST(GgufVocabulary, TakesThePathOfTheBestScores) {
  const Tokenizer tokenizer(tokenizer_spec_from_gguf(small_unigram()));
  EXPECT_THAT(tokenizer.encode("ab a"), ElementsAre(3, 6, 5, 1));
  EXPECT_THAT(tokenizer.encode("xyza"), ElementsAre(3, 2, 4, 1));  // unknown characters are one token
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("ab a")), "ab a");
}

TEST(GgufVocabulary, SurvivesACharacterMapThatCutsCharacters) {
  GgufVocabulary vocabulary = small_unigram();
  // One unit: the byte C3 alone, the start of many characters, is to become "a".
  std::string& map = vocabulary.precompiled_charsmap;
  const auto put = [&](uint32_t value) {
    for (int shift = 0; shift < 32; shift += 8) map.push_back(static_cast<char>(value >> shift & 0xFF));
  };
  put(256 * 4);
  for (uint32_t i = 0; i < 256; ++i) put(i == 0xC3 ? (1u << 10 | 1u << 8 | 0xC3) : i == 0xC2 ? 1u << 31 : 0);
  map += std::string("a\0", 2);
  const Tokenizer tokenizer(tokenizer_spec_from_gguf(vocabulary));
  EXPECT_THAT(tokenizer.encode("\u00E9a"), ElementsAre(3, 2, 4, 1));
}

TEST(GgufVocabulary, MergesByScoreAndFallsBackToBytes) {
  GgufVocabulary vocabulary;
  vocabulary.model = "llama";
  vocabulary.tokens = {"<unk>", "<s>", "</s>", "<0xC3>",  "<0xA9>", "\u2581",
                       "a",     "b",   "ab",   "\u2581a", "<s>b"};
  vocabulary.token_types = {2, 3, 3, 6, 6, 1, 1, 1, 1, 1, 1};
  vocabulary.scores = {0, 0, 0, 0, 0, -9, -9, -9, -1, -2, 0};
  const Tokenizer tokenizer(tokenizer_spec_from_gguf(vocabulary));
  EXPECT_THAT(tokenizer.encode("ab a\u00E9"), ElementsAre(1, 5, 8, 9, 3, 4));
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("ab a\u00E9")), "ab a\u00E9");
}

TEST(GgufVocabulary, KeepsApartWhatALostCharacterParts) {
  const Tokenizer tokenizer(tokenizer_spec_from_gguf(small_bpe("gpt-2")));
  EXPECT_THAT(tokenizer.encode("h?e"), ElementsAre(2, 3));
}

TEST(GgufVocabulary, TakesTheLongestAddedTokenAnywhereFirst) {
  GgufVocabulary vocabulary = small_bpe("gpt-2");
  vocabulary.tokens[8] = "th";
  vocabulary.tokens[9] = "hee";
  vocabulary.token_types[9] = 4;
  const Tokenizer tokenizer(tokenizer_spec_from_gguf(vocabulary));
  EXPECT_THAT(tokenizer.encode("thee"), ElementsAre(1, 9));
  EXPECT_THAT(tokenizer.encode("thth"), ElementsAre(8, 8));
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
