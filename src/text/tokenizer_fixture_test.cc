#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/json.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"
#include "text/tokenizer_json.h"
#include "text/tokenizer_spec.h"
#include "text/utf8.h"

// Tiny tokenizers of every kind, and what the Hugging Face library computes with them
// (tools/make_tokenizer_fixtures.py).
namespace quire {
namespace {

namespace fs = std::filesystem;

const fs::path kFolder = fs::path(QUIRE_SOURCE_DIR) / "tests" / "tokenizers";

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream content;
  content << file.rdbuf();
  return content.str();
}

std::string digest(std::string_view bytes) {
  uint32_t value = 0x811C9DC5;
  for (const char byte : bytes) value = (value ^ static_cast<unsigned char>(byte)) * 0x01000193;
  return fmt::format("{:06x}", value & 0xFFFFFF);
}

std::string digest(const std::vector<TokenId>& ids) {
  std::string bytes;
  for (const TokenId id : ids) {
    for (int shift = 0; shift < 32; shift += 8) bytes.push_back(static_cast<char>(id >> shift & 0xFF));
  }
  return digest(bytes);
}

class TokenizerFixture : public testing::TestWithParam<std::string> {
 protected:
  const fs::path folder_ = kFolder / GetParam();
  const Tokenizer tokenizer_{tokenizer_spec_from_json(read_file(folder_ / "tokenizer.json"), "")};
  const Json expected_ = read_json_file((folder_ / "expected.json").string());
  const std::vector<std::string> texts_ = read_json_file((kFolder / "strings.json").string());

  std::vector<TokenId> encode_special(size_t i) const {
    return tokenizer_.encode(texts_[i], {.parse_special = true});
  }

  // compute(i) is the digest of what we make of string i.
  template <class Compute>
  void expect_all(const char* what, Compute&& compute) {
    const auto& digests = expected_.at(what).get_ref<const std::string&>();
    ASSERT_EQ(digests.size(), texts_.size() * 6);
    size_t wrong = 0;
    for (size_t i = 0; i < texts_.size(); ++i) {
      const std::string_view expected = std::string_view(digests).substr(i * 6, 6);
      if (compute(i) == expected || expected == "------") continue;
      if (++wrong <= 3)
        ADD_FAILURE() << what << " differs for string " << i << ": " << Json(texts_[i]).dump();
    }
    EXPECT_EQ(wrong, 0u);
  }
};

TEST_P(TokenizerFixture, EncodesTheSamplesToTheSameIds) {
  for (const Json& sample : expected_.at("samples")) {
    EXPECT_EQ(encode_special(sample.at(0).get<size_t>()), sample.at(1).get<std::vector<TokenId>>());
  }
}

TEST_P(TokenizerFixture, EncodesWithSpecialTokensAsTheLibraryDoes) {
  expect_all("encode_special", [&](size_t i) { return digest(encode_special(i)); });
}

TEST_P(TokenizerFixture, EncodesWithoutSpecialTokensAsTheLibraryDoes) {
  expect_all("encode_plain",
             [&](size_t i) { return digest(tokenizer_.encode(texts_[i], {.add_special = false})); });
}

TEST_P(TokenizerFixture, MakesNoSpecialTokenOfPlainText) {
  for (const std::string& text : texts_) {
    for (const TokenId id : tokenizer_.encode(text, {.add_special = false})) {
      ASSERT_TRUE(id == tokenizer_.spec().unknown || !tokenizer_.is_special(id)) << Json(text).dump();
    }
  }
}

TEST_P(TokenizerFixture, DecodesWithoutSpecialTokensAsTheLibraryDoes) {
  expect_all("decode_skip", [&](size_t i) { return digest(tokenizer_.decode(encode_special(i))); });
}

TEST_P(TokenizerFixture, DecodesWithSpecialTokensAsTheLibraryDoes) {
  expect_all("decode_keep", [&](size_t i) {
    return digest(tokenizer_.decode(encode_special(i), Tokenizer::Special::keep));
  });
}

TEST_P(TokenizerFixture, StreamsTheSameTextInValidPieces) {
  for (size_t i = 0; i < texts_.size(); ++i) {
    std::vector<TokenId> ids = encode_special(i);
    if (ids.size() > 3)
      ids.erase(ids.begin() + ptrdiff_t(ids.size() / 2));  // and with a broken character in it
    Detokenizer stream(tokenizer_);
    std::string joined;
    for (const TokenId id : ids) {
      const std::string piece = stream.push(id);
      ASSERT_TRUE(is_valid_utf8(piece)) << "string " << i;
      joined += piece;
    }
    joined += stream.finish();
    ASSERT_EQ(joined, tokenizer_.decode(ids)) << "string " << i;
  }
}

std::vector<std::string> fixture_names() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(kFolder)) {
    if (entry.is_directory()) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

INSTANTIATE_TEST_SUITE_P(All, TokenizerFixture, testing::ValuesIn(fixture_names()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace quire
