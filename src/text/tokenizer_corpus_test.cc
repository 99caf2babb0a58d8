// Files that the fuzzer found worth keeping: each is read in bounded time or refused with an Error.
#include <filesystem>
#include <fstream>
#include <iterator>

#include <gtest/gtest.h>

#include "base/error.h"
#include "text/tokenizer.h"
#include "text/tokenizer_json.h"

namespace quire {
namespace {

TEST(TokenizerCorpus, EveryFileIsReadOrRefusedAndWhatIsReadWorks) {
  size_t read = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(QUIRE_SOURCE_DIR "/tests/corpus/tokenizer_json")) {
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string json{std::istreambuf_iterator<char>(file), {}};
    try {
      const Tokenizer tokenizer(tokenizer_spec_from_json(json, "{}"));
      for (const TokenId id : tokenizer.encode("Hello, w\xC3\xB6rld!\n\n 123 <s>\xFF"))
        EXPECT_LT(id, tokenizer.size());
      ++read;
    } catch (const Error& error) {
      EXPECT_STRNE(error.what(), "") << entry.path();
    }
  }
  EXPECT_GT(read, 0u);
}

}  // namespace
}  // namespace quire
