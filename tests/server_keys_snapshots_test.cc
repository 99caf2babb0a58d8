// Snapshots with API keys: who makes them, and what they keep of whom.
#include <fstream>

#include "server_keys_fixture.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

TEST_F(ServerKeys, OnlyTheFirstKeySavesSnapshots) {
  serve_from_folder("");
  answer(kBob, secret());
  const HttpReply refused = as(kBob, "POST", "/kv/save", {{"name", "cache.kv"}});
  EXPECT_EQ(refused.status, 403);
  EXPECT_EQ(refused.error("code"), "not_the_first_key");
  EXPECT_TRUE(fs::is_empty(folder_));
  EXPECT_EQ(as(kAnn, "POST", "/kv/save", {{"name", "cache.kv"}}).status, 200);
}

TEST_F(ServerKeys, AfterARestartEachKeyFindsItsOwnAgainAndNothingOfTheOther) {
  serve_from_folder("");
  answer(kAnn, secret());
  answer(kBob, secret(100, 1));
  answer(kAnn, secret(100, 2), {{"cache_salt", "pepper"}});
  good_as(kAnn, "POST", "/kv/save");
  serve_from_folder("cache.kv");
  EXPECT_EQ(looked_up(kAnn, secret()), 99);
  EXPECT_EQ(looked_up(kBob, secret()), 0);
  EXPECT_EQ(looked_up(kBob, secret(100, 1)), 99);
  EXPECT_EQ(looked_up(kAnn, secret(100, 1)), 0);
  EXPECT_EQ(looked_up(kAnn, secret(100, 2), {{"cache_salt", "pepper"}}), 99);
  EXPECT_EQ(looked_up(kAnn, secret(100, 2)), 0);
  // The order of the keys does not matter, and another key finds nothing.
  options_.service.api_keys = {"key of eve", "key of bob", "key of ann"};
  serve_from_folder("cache.kv");
  EXPECT_EQ(looked_up(kAnn, secret()), 99);
  EXPECT_EQ(looked_up("Authorization: Bearer key of eve\r\n", secret()), 0);
}

TEST_F(ServerKeys, TheFolderKeepsNoKeyAndItsSecretIsForItsOwnerOnly) {
  serve_from_folder("");
  answer(kAnn, secret());
  good_as(kAnn, "POST", "/kv/save");
  size_t files = 0;
  for (const auto& entry : fs::directory_iterator(folder_)) {
    ++files;
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    EXPECT_EQ(bytes.find("key of"), std::string::npos) << entry.path();
    EXPECT_EQ(entry.status().permissions() & (fs::perms::group_all | fs::perms::others_all), fs::perms::none);
  }
  EXPECT_EQ(files, 2u);
}

TEST_F(ServerKeys, WithoutTheSecretOfItsFolderASnapshotIsFoundByNobody) {
  serve_from_folder("");
  answer(kAnn, secret());
  good_as(kAnn, "POST", "/kv/save");
  fs::remove(folder_ + "/.salt_secret");
  serve_from_folder("cache.kv");
  EXPECT_EQ(looked_up(kAnn, secret()), 0);
}

TEST_F(ServerKeys, SnapshotsAreLimitedInNumberAndBytes) {
  options_.snapshots.files = 2;
  serve_from_folder("");
  answer(kAnn, secret(400));
  const uint64_t bytes = good_as(kAnn, "POST", "/kv/save", {{"name", "one"}})["bytes"].get<uint64_t>();
  good_as(kAnn, "POST", "/kv/save", {{"name", "two"}});
  const HttpReply full = as(kAnn, "POST", "/kv/save", {{"name", "three"}});
  EXPECT_EQ(full.status, 409);
  EXPECT_EQ(full.error("code"), "too_many_snapshots");
  good_as(kAnn, "POST", "/kv/save", {{"name", "two"}});  // in place of itself

  options_.snapshots.bytes = bytes + bytes / 2;
  serve_from_folder("one");
  const HttpReply large = as(kAnn, "POST", "/kv/save", {{"name", "two"}});
  EXPECT_EQ(large.status, 500) << large.body;
  EXPECT_NE(large.body.find("does not fit"), std::string::npos);
  EXPECT_EQ(fs::file_size(folder_ + "/two"), bytes) << "the old one is still there";
}
}  // namespace
}  // namespace quire
