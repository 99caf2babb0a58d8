#include "text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/json.h"
#include "text/detokenizer.h"
#include "text/gguf_vocabulary.h"
#include "text/tokenizer_json.h"
#include "text/tokenizer_spec.h"

namespace quire {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Letters a to c, a space, "ab", and two special tokens.
Json small_json() {
  return Json::parse(R"({
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2, "Ġ": 3, "ab": 4}, "merges": [["a", "b"]]},
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
    "decoder": {"type": "ByteLevel"},
    "added_tokens": [
      {"id": 5, "content": "<s>", "special": true, "normalized": false},
      {"id": 6, "content": "<e>", "special": true, "normalized": false},
      {"id": 7, "content": "bc", "special": false, "normalized": false}]
  })");
}

Tokenizer make(const Json& json, const Json& config = Json::object()) {
  return Tokenizer(tokenizer_spec_from_json(json.dump(), config.dump()));
}

void expect_error(const Json& json, const std::string& part) {
  try {
    make(json).encode("abc <s>");
    ADD_FAILURE() << "no error for " << part;
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr(part));
  }
}

TEST(Tokenizer, KeepsSpecialTokensOutOfPlainRanges) {
  const Tokenizer tokenizer = make(small_json());
  const std::string text = "<s>a<s>c<e>";
  const std::vector<ByteRange> plain = {{3, 8}};
  EXPECT_THAT(tokenizer.encode(text, {.parse_special = true, .plain = plain}), ElementsAre(5, 0, 2, 6));
  EXPECT_THAT(tokenizer.encode({text, plain}), ElementsAre(5, 0, 2, 6));
  EXPECT_THAT(tokenizer.encode(text, {.parse_special = true}), ElementsAre(5, 0, 5, 2, 6));
  EXPECT_THAT(tokenizer.encode(text), ElementsAre(0, 2));  // the vocabulary has no letters for the rest
}

TEST(Tokenizer, DoesNotParseASpecialTokenThatIsHalfPlain) {
  const std::vector<ByteRange> plain = {{0, 1}};
  EXPECT_THAT(make(small_json()).encode("<s>a", {.parse_special = true, .plain = plain}), ElementsAre(0));
}

TEST(Tokenizer, MatchesAddedTokensThatAreNotSpecialEvenInPlainRanges) {
  const std::vector<ByteRange> plain = {{0, 3}};
  EXPECT_THAT(make(small_json()).encode("abc", {.plain = plain}), ElementsAre(0, 7));
}

TEST(Tokenizer, MovesPlainRangesWithReplacedBytes) {
  const std::vector<ByteRange> plain = {{0, 2}, {5, 8}};  // two broken bytes become six
  EXPECT_THAT(make(small_json()).encode("\xFF\xFF<s><s>a", {.parse_special = true, .plain = plain}),
              ElementsAre(5, 0));
}

TEST(Tokenizer, KeepsNormalizedSpecialTokensOutOfPlainRanges) {
  Json json = small_json();
  json["normalizer"] = {{"type", "Prepend"}, {"prepend", "c"}};
  json["added_tokens"] = Json::parse(R"([{"content": "<s>", "special": true, "normalized": true}])");
  const Tokenizer tokenizer = make(json);  // its pattern is "c<s>": the prefix is normalized, too
  EXPECT_THAT(tokenizer.encode("<s>a", {.parse_special = true}), ElementsAre(5, 0));
  const std::vector<ByteRange> plain = {{0, 3}};
  EXPECT_THAT(tokenizer.encode("<s>a", {.parse_special = true, .plain = plain}), ElementsAre(2, 0));
}

TEST(Tokenizer, ReadsBosAndEosAsTextOrObject) {
  const Tokenizer tokenizer =
      make(small_json(), Json::parse(R"({"bos_token": "<s>", "eos_token": {"content": "<e>"}})"));
  EXPECT_EQ(tokenizer.bos(), 5u);
  EXPECT_EQ(tokenizer.eos(), 6u);
  EXPECT_TRUE(tokenizer.is_special(5));
  EXPECT_FALSE(tokenizer.is_special(7));
  EXPECT_EQ(tokenizer.token(4), "ab");
  EXPECT_EQ(tokenizer.find("ab"), 4u);
  EXPECT_EQ(tokenizer.find("zzz"), std::nullopt);
}

TEST(Tokenizer, NamesTheComponentItDoesNotKnow) {
  for (const char* part : {"normalizer", "pre_tokenizer", "decoder", "post_processor"}) {
    Json json = small_json();
    json[part] = {{"type", "Mystery"}};
    expect_error(json, "Mystery");
  }
  Json json = small_json();
  json["model"]["type"] = "Mystery";
  expect_error(json, "Mystery");
}

TEST(Tokenizer, RefusesAVocabularyThatMakesNoSense) {
  Json json = small_json();
  json["model"]["vocab"]["far"] = 4'000'000'000u;
  expect_error(json, "4000000000");
  json = small_json();
  json["model"]["vocab"]["same"] = 0;
  expect_error(json, "same id");
  json = small_json();
  json["model"]["vocab"] = 7;
  expect_error(json, "vocabulary");
  json = small_json();
  json["model"]["vocab"]["a"] = -1;
  expect_error(json, "'a'");
  json = small_json();
  json["model"]["merges"] = {{"a", "zz"}};
  expect_error(json, "zz");
  json["model"]["merges"] = {"a b c"};
  expect_error(json, "a b c");
}

TEST(Tokenizer, RefusesARegularExpressionThatDoesNotCompile) {
  Json json = small_json();
  json["pre_tokenizer"] =
      Json::parse(R"({"type": "Split", "pattern": {"Regex": "(a"}, "behavior": "Isolated"})");
  expect_error(json, "(a");
}

TEST(Tokenizer, GivesUpOnARegularExpressionThatExplodes) {
  Json json = small_json();
  json["pre_tokenizer"] = Json::parse(
      R"({"type": "Split", "pattern": {"Regex": "(a|a)*(a|a)*(a|a)*c$"}, "behavior": "Isolated"})");
  EXPECT_THROW(make(json).encode(std::string(400, 'a') + "cb"), Error);
}

TEST(Tokenizer, TakesLongTextsWithoutSpacesInItsStride) {
  const Tokenizer tokenizer = make(small_json());
  for (const std::string unit : {"a", "ab", " ", "bc"}) {
    std::string text;
    while (text.size() < 200'000) text += unit;
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  }
}

TEST(Tokenizer, LooksAtNoMoreOfATextThanItsCallerCanUse) {
  const Tokenizer tokenizer = make(small_json());
  EXPECT_THAT(tokenizer.encode("a b", {.most_tokens = 3}), ElementsAre(0, 3, 1));
  EXPECT_THROW(tokenizer.encode("a b c", {.most_tokens = 3}), TooManyTokens);
  EXPECT_THROW(tokenizer.encode("<s><s>", {.parse_special = true, .most_tokens = 1}), TooManyTokens);
}

// Four million places where a token of a thousand bytes is missed by its last one.
TEST(Tokenizer, NearMatchesOfAnAddedTokenCostNoMoreThanOtherText) {
  for (const char* order : {"first", "longest"}) {
    TokenizerSpec spec = tokenizer_spec_from_json(small_json().dump(), "{}");
    spec.added_order =
        order == std::string("first") ? AddedTokenOrder::leftmost : AddedTokenOrder::longest_first;
    spec.added_tokens.push_back({.id = 7, .text = std::string(1000, 'x') + "y", .special = true});
    const Tokenizer tokenizer(std::move(spec));
    EXPECT_TRUE(tokenizer.encode(std::string(4 << 20, 'x'), {.parse_special = true}).empty());
    EXPECT_THAT(tokenizer.encode(std::string(1001, 'x') + "y", {.parse_special = true}), ElementsAre(7));
  }
}

// The words that a vocabulary lacks took the square of their length, and each try a copy.
TEST(Tokenizer, LongWordsOfAWordPieceModelTakeNoLongerThanTheirLength) {
  Json json =
      Json::parse(R"({"model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
    "max_input_chars_per_word": 10000, "vocab": {"[UNK]": 0, "a": 1, "##a": 2, "##ab": 3}}})");
  const Tokenizer tokenizer = make(json);
  EXPECT_THAT(tokenizer.encode("aaab"), ElementsAre(1, 2, 3));
  EXPECT_THAT(tokenizer.encode("aac"), ElementsAre(0));
  EXPECT_EQ(tokenizer.encode(std::string(10'000, 'a')).size(), 10'000u);
}

TEST(Detokenizer, HoldsBackHalfACharacter) {
  Json json = small_json();
  json["model"]["vocab"] = {{"Ã", 0}, {"©", 1}, {"a", 2}};  // the bytes C3 and A9: é
  json["model"]["merges"] = Json::array();
  const Tokenizer tokenizer = make(json);
  Detokenizer stream(tokenizer);
  EXPECT_EQ(stream.push(0), "");
  EXPECT_EQ(stream.push(1), "é");
  EXPECT_EQ(stream.push(0), "");
  EXPECT_EQ(stream.push(2),
            "\xEF\xBF\xBD"
            "a");
  EXPECT_EQ(stream.push(0), "");
  EXPECT_EQ(stream.finish(), "\xEF\xBF\xBD");
  EXPECT_EQ(stream.push(2), "a");  // and starts anew
}

TEST(GgufVocabularyFromSpec, NamesThePretokenizerByWhatItDoes) {
  const auto name_of = [](const Json& pretokenizer, bool ignore_merges) {
    Json json = small_json();
    json["pre_tokenizer"] = pretokenizer;
    json["model"]["ignore_merges"] = ignore_merges;
    return gguf_vocabulary_from_spec(make(json).spec()).pre;
  };
  const auto split = [](const std::string& pattern) {
    Json steps =
        Json::array({{{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}},
                     {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}});
    return Json{{"type", "Sequence"}, {"pretokenizers", steps}};
  };
  const std::string llama3 =
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  EXPECT_EQ(name_of(split(llama3), true), "llama-bpe");
  EXPECT_EQ(name_of(split(llama3), false), "smaug-bpe");
  EXPECT_EQ(name_of({{"type", "ByteLevel"}, {"add_prefix_space", false}}, false), "gpt-2");
  EXPECT_THROW(name_of(split("[a-z]+"), false), Error);
}

}  // namespace
}  // namespace quire
