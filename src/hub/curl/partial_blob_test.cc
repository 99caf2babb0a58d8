#include "hub/partial_blob.h"

#include <fstream>
#include <iterator>

#include <gtest/gtest.h>
#include <unistd.h>

#include "base/error.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

class PartialBlobTest : public testing::Test {
 protected:
  PartialBlobTest() { fs::create_directories(folder_); }
  ~PartialBlobTest() override { fs::remove_all(folder_); }

  const fs::path folder_ = testing::TempDir() + "/quire_partial_blob_" + std::to_string(::getpid());
  const fs::path blob_ = folder_ / "blob", partial_ = folder_ / "blob.incomplete";
  // "hello\n", as sha256sum and `git hash-object` have it.
  const RepoFile large_{.path = "m.gguf",
                        .bytes = 6,
                        .digest = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03"};
  const RepoFile small_{.path = "c.json", .bytes = 6, .digest = "ce013625030ba8dba906f756967f9e9ca394464a"};
};

TEST_F(PartialBlobTest, GetsItsNameWhenItIsWhatWasPromised) {
  for (const RepoFile& file : {large_, small_}) {
    PartialBlob blob(blob_, file);
    blob.append(bytes_of("hel"));
    EXPECT_EQ(blob.missing(), 3u);
    EXPECT_EQ(PartialBlob::size_of(blob_), 3u);
    blob.append(bytes_of("lo\n"));
    EXPECT_TRUE(blob.finish());
    EXPECT_EQ(fs::file_size(blob_), 6u);
    EXPECT_FALSE(fs::exists(partial_));
    fs::remove(blob_);
  }
}

TEST_F(PartialBlobTest, GoesOnAfterEveryByteThatWasThere) {
  const std::string all = "hello\n";
  for (size_t there = 0; there <= all.size(); ++there) {
    { PartialBlob(blob_, large_).append(bytes_of(all.substr(0, there))); }
    PartialBlob blob(blob_, large_);
    EXPECT_EQ(blob.size(), there);
    blob.append(bytes_of(all.substr(there)));
    EXPECT_TRUE(blob.finish()) << there;
    fs::remove(blob_);
  }
}

TEST_F(PartialBlobTest, IsGoneIfItIsSomethingElse) {
  PartialBlob blob(blob_, large_);
  blob.append(bytes_of("jello\n"));
  EXPECT_FALSE(blob.finish());
  EXPECT_FALSE(fs::exists(blob_));
  EXPECT_FALSE(fs::exists(partial_));
}

TEST_F(PartialBlobTest, TakesNoMoreThanTheFileHas) {
  PartialBlob blob(blob_, large_);
  EXPECT_THROW(blob.append(bytes_of("hello, world")), Error);
  blob.append(bytes_of("hel"));
  blob.start_again();
  EXPECT_EQ(blob.size(), 0u);
  blob.append(bytes_of("hello\n"));
  EXPECT_TRUE(blob.finish());
  std::ofstream(partial_) << "longer than the file";
  fs::remove(blob_);
  EXPECT_EQ(PartialBlob(blob_, large_).size(), 0u);
}

TEST_F(PartialBlobTest, FollowsNoLink) {
  std::ofstream(folder_ / "other") << "kept";
  fs::create_symlink(folder_ / "other", partial_);
  EXPECT_THROW(PartialBlob(blob_, large_), Error);
  EXPECT_EQ(fs::file_size(folder_ / "other"), 4u);
}

}  // namespace
}  // namespace quire
