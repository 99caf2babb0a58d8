#include "hub/hub_cache.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "base/error.h"
#include "hub/cache_lock.h"
#include "hub/pull.h"
#include "hub/stored_models.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

class HubCacheTest : public testing::Test {
 protected:
  HubCacheTest() { fs::create_directories(folder_); }
  ~HubCacheTest() override { fs::remove_all(folder_); }

  // A file that was fetched: its blob, and a link in the snapshot.
  RepoFile put(const std::string& commit, const std::string& path, char digit, size_t bytes) const {
    const RepoFile file{.path = path, .bytes = bytes, .digest = std::string(64, digit)};
    cache_.make_snapshot(name_, commit);
    std::ofstream(cache_.blob(name_, file)) << std::string(bytes, 'x');
    cache_.link(name_, commit, file);
    return file;
  }
  static std::string commit(char digit) { return std::string(40, digit); }

  const fs::path folder_ = testing::TempDir() + "/quire_hub_cache_" + std::to_string(::getpid());
  const HubCache cache_{folder_};
  const HubName name_ = HubName::parse("hf:org/name");
};

TEST_F(HubCacheTest, LaysFilesOutAsOthersExpectThem) {
  put(commit('1'), "a/b/m-Q4_0.gguf", 'a', 5);
  cache_.write_revision(name_, commit('1'));
  const fs::path link = folder_ / "models--org--name/snapshots" / commit('1') / "a/b/m-Q4_0.gguf";
  EXPECT_EQ(fs::read_symlink(link), "../../../../blobs/" + std::string(64, 'a'));
  EXPECT_EQ(fs::file_size(link), 5u);
  EXPECT_EQ(cache_.commit(name_), commit('1'));
  EXPECT_THAT(cache_.revisions(name_), testing::ElementsAre("main"));
  EXPECT_THAT(cache_.repos(), testing::ElementsAre(name_));
  ASSERT_EQ(cache_.files(name_, commit('1')).size(), 1u);
  EXPECT_EQ(cache_.files(name_, commit('1'))[0].digest, std::string(64, 'a'));
  EXPECT_EQ(cache_.commit(HubName::parse("hf:org/name@" + commit('1'))), commit('1'));
  EXPECT_FALSE(cache_.commit(HubName::parse("hf:org/name@" + commit('2'))));
}

TEST_F(HubCacheTest, FindsOnlyModelsThatAreWhole) {
  put(commit('1'), "m-Q4_0-00001-of-00002.gguf", 'a', 5);
  cache_.write_revision(name_, commit('1'));
  EXPECT_TRUE(whole_models(cache_, name_, commit('1')).empty());
  const RepoFile second = put(commit('1'), "m-Q4_0-00002-of-00002.gguf", 'b', 5);
  EXPECT_EQ(whole_models(cache_, name_, commit('1')).size(), 1u);
  fs::remove(cache_.blob(name_, second));  // a link without its blob is no file
  EXPECT_TRUE(whole_models(cache_, name_, commit('1')).empty());
  put(commit('1'), "config.json", 'c', 5);
  put(commit('1'), "model-00001-of-00002.safetensors", 'd', 5);
  EXPECT_TRUE(whole_models(cache_, name_, commit('1')).empty());
  put(commit('1'), "model-00002-of-00002.safetensors", 'e', 5);
  EXPECT_EQ(whole_models(cache_, name_, commit('1')).size(), 1u);
  const std::optional<PulledModel> found = find_pulled(name_, {.cache = folder_});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->path, cache_.snapshot(name_, commit('1')).string());
  HubName other = name_;
  other.which = "Q8_0";
  EXPECT_FALSE(find_pulled(other, {.cache = folder_}));
}

TEST_F(HubCacheTest, IgnoresWhatOthersMayHavePutThere) {
  fs::create_directories(folder_ / "models--..--x/snapshots");
  fs::create_directories(folder_ / "datasets--org--name/snapshots");
  fs::create_directories(folder_ / "models--org--name/refs");
  std::ofstream(folder_ / "models--org--name/refs/main") << "../../../../etc";
  EXPECT_THAT(cache_.repos(), testing::ElementsAre(name_));
  EXPECT_FALSE(cache_.commit(name_));
  EXPECT_TRUE(stored_models({.cache = folder_, .ollama = folder_}).empty());
}

TEST_F(HubCacheTest, RemovesWhatNoOtherSnapshotHolds) {
  const RepoFile shared = put(commit('1'), "m-Q4_0.gguf", 'a', 5),
                 own = put(commit('1'), "m-Q8_0.gguf", 'b', 7);
  put(commit('2'), "m-Q4_0.gguf", 'a', 5);
  cache_.write_revision(name_, commit('1'));
  const Removal removal = plan_removal(HubName::parse("hf:org/name@main"), false, cache_);
  EXPECT_EQ(removal.bytes, 7u);
  removal.carry_out();
  EXPECT_TRUE(cache_.has_blob(name_, shared));
  EXPECT_FALSE(cache_.has_blob(name_, own));
  EXPECT_THAT(cache_.commits(name_), testing::ElementsAre(commit('2')));
  EXPECT_TRUE(cache_.revisions(name_).empty());
  EXPECT_THROW(plan_removal(HubName::parse("hf:org/name@main"), false, cache_), Error);
  plan_removal(name_, true, cache_).carry_out();
  EXPECT_FALSE(fs::exists(cache_.repo(name_)));
}

TEST_F(HubCacheTest, RemovesNothingThatIsOnItsWayAndFollowsNoLinks) {
  const RepoFile file = put(commit('1'), "m-Q4_0.gguf", 'a', 5);
  {
    const CacheLock lock(cache_.lock(name_, file), [] {});
    EXPECT_TRUE(CacheLock::is_held(cache_.lock(name_, file)));
    EXPECT_THROW(plan_removal(name_, true, cache_).carry_out(), Error);
  }
  EXPECT_FALSE(CacheLock::is_held(cache_.lock(name_, file)));
  const fs::path elsewhere = folder_ / "elsewhere";
  fs::create_directories(elsewhere);
  std::ofstream(elsewhere / "kept") << "x";
  fs::create_symlink(elsewhere, cache_.repo(name_) / "blobs" / std::string(64, 'f'));
  fs::create_symlink(elsewhere / "kept", cache_.snapshot(name_, commit('1')) / "kept");
  plan_removal(name_, true, cache_).carry_out();
  EXPECT_TRUE(fs::exists(elsewhere / "kept"));
  fs::create_directory_symlink(elsewhere, cache_.repo(name_));
  EXPECT_THROW(plan_removal(name_, true, cache_), Error);
}

}  // namespace
}  // namespace quire
