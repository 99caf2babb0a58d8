#include "hub/hub_name.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace quire {
namespace {

TEST(HubName, HasARepositoryARevisionAndAType) {
  const HubName name = HubName::parse("hf:org/name@refs/pr/1:Q4_K_M");
  EXPECT_EQ(name.repo, "org/name");
  EXPECT_EQ(name.revision, "refs/pr/1");
  EXPECT_EQ(name.which, "Q4_K_M");
  EXPECT_EQ(name.text(), "hf:org/name@refs/pr/1:Q4_K_M");
  EXPECT_EQ(name.folder(), "models--org--name");
  EXPECT_EQ(HubName::parse("org/name").text(), "hf:org/name");
  EXPECT_EQ(HubName::parse("hf:gpt2").folder(), "models--gpt2");
  EXPECT_EQ(HubName::parse("hf:a/b:folder/file.gguf").which, "folder/file.gguf");
  EXPECT_TRUE(HubName::parse("hf:a/b@" + std::string(40, 'a')).is_commit());
  EXPECT_FALSE(HubName::parse("hf:a/b@" + std::string(40, 'g')).is_commit());
}

TEST(HubName, RefusesWhatIsNone) {
  for (const char* text :
       {"",          "hf:",           "hf:/b",     "hf:a/",        "hf:a/b/c", "hf:../b",
        "hf:a/..",   "hf:a/b..c",     "hf:a--b/c", "hf:.a/b",      "hf:a/b.",  "hf:a/b@",
        "hf:a/b@..", "hf:a/b@x/../y", "hf:a/b:",   "hf:a/b:../x",  "hf:a b/c", "hf:a/b:x:y",
        "hf:a/b?c",  "hf:a/b%2e",     "hf:a\\b",   "hf:\xc3\xa4/b"})
    EXPECT_THROW(HubName::parse(text), Error) << text;
}

TEST(HubName, IsTakenPlainlyOnlyWhereNoFileCouldBeMeant) {
  EXPECT_TRUE(plain_hub_name("org/name"));
  EXPECT_TRUE(plain_hub_name("org/name:Q4_K_M"));
  for (const char* text : {"house", "org/name.gguf", "./org/name", "/org/name", "../org/name", "a/b/c",
                           "src/nothing", "org/", "name", "name:1/2", "~/name"})
    EXPECT_FALSE(plain_hub_name(text)) << text;
}

TEST(HubName, LetsNoPathLeadElsewhere) {
  for (const char* path : {"model.gguf", "a/b/c-00001-of-00002.gguf", "config.json", "UD-Q4_K_XL/m.gguf"})
    EXPECT_TRUE(is_safe_path(path)) << path;
  for (const char* path : {"", "/etc/passwd", "../x", "a/../b", "a/..", "./a", "a//b", "a/", "a\\b", "a\nb",
                           "\x1b[0m", "a b", "c:x", ".hidden", "a/.b", "\xe2\x80\xae", "a\"b"})
    EXPECT_FALSE(is_safe_path(path)) << path;
  EXPECT_FALSE(is_safe_path(std::string(231, 'x')));
  EXPECT_FALSE(is_safe_path(std::string_view("a\0b", 3)));
}

}  // namespace
}  // namespace quire
