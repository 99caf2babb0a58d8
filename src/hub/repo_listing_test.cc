#include "hub/repo_listing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace quire {
namespace {

const std::string kSha = std::string(64, 'a'), kGit = std::string(40, 'b');

std::string entry(const std::string& path, const std::string& rest) {
  return R"({"type": "file", "path": ")" + path + R"(", )" + rest + "}";
}

TEST(RepoListing, TakesLargeFilesByTheirSha256AndSmallOnesByGitsHash) {
  RepoListing listing;
  add_tree_page("[" +
                    entry("a.gguf", R"("size": 5, "oid": ")" + kGit + R"(", "lfs": {"oid": ")" + kSha +
                                        R"(", "size": 7})") +
                    "," + entry("config.json", R"("size": 3, "oid": ")" + kGit + R"(", "lfs": null)") +
                    R"(, {"type": "directory", "path": "x"}])",
                listing);
  ASSERT_EQ(listing.files.size(), 2u);
  EXPECT_EQ(listing.find("a.gguf")->bytes, 7u);
  EXPECT_EQ(listing.find("a.gguf")->digest, kSha);
  EXPECT_EQ(listing.find("config.json")->digest, kGit);
  EXPECT_EQ(listing.find("x"), nullptr);
}

TEST(RepoListing, LeavesHostileNamesOutAndRefusesWhatIsNoList) {
  RepoListing listing;
  add_tree_page("[" + entry("../x", R"("size": 5)") + "," + entry("/y", R"("size": 5)") + "]", listing);
  EXPECT_TRUE(listing.files.empty());
  EXPECT_EQ(listing.left_out, 2u);
  EXPECT_EQ(listing.left_out_name, "../x");
  for (const std::string& page : {std::string("{}"), std::string("[1]"), std::string("["),
                                  "[" + entry("a", R"("size": 5, "oid": "../../x")") + "]",
                                  "[" + entry("a", R"("size": -5, "oid": ")" + kGit + R"(")") + "]",
                                  "[" + entry("a", R"("size": 1e300, "oid": ")" + kGit + R"(")") + "]",
                                  "[" +
                                      entry("a", R"("size": 5, "oid": ")" + kGit + R"(", "lfs": {"oid": ")" +
                                                     kGit + R"(", "size": 5})") +
                                      "]",
                                  std::string(1000, '[')})
    EXPECT_THROW(add_tree_page(page, listing), Error) << page;
}

TEST(RepoListing, FindsTheCommitAndTheShards) {
  EXPECT_EQ(commit_in(R"({"sha": ")" + kGit + R"("})"), kGit);
  EXPECT_THROW(commit_in(R"({"sha": "../x"})"), Error);
  EXPECT_THROW(commit_in("[]"), Error);
  EXPECT_THAT(
      shards_in(R"({"weight_map": {"a": "2.safetensors", "b": "1.safetensors", "c": "2.safetensors"}})"),
      testing::ElementsAre("1.safetensors", "2.safetensors"));
  for (const char* index :
       {"{}", R"({"weight_map": {"a": "../1.safetensors"}})", R"({"weight_map": {"a": "x.bin"}})",
        R"({"weight_map": {"a": 1}})", R"({"weight_map": []})"})
    EXPECT_THROW(shards_in(index), Error) << index;
}

TEST(RepoListing, FindsTheNextPageInALink) {
  EXPECT_EQ(next_page_in(R"(<https://h/p?cursor=1>; rel="next")"), "https://h/p?cursor=1");
  EXPECT_EQ(next_page_in(R"(<https://h/1>; rel="prev", <https://h/2>; rel="next")"), "https://h/2");
  for (const char* none : {"", "<", "<a", "<a>", R"(<a>; rel="prev")", R"(>; rel="next")"})
    EXPECT_EQ(next_page_in(none), "") << none;
}

}  // namespace
}  // namespace quire
