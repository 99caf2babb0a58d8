#include "base/replacing_file.h"

#include <cerrno>
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

class ReplacingFiles : public testing::Test {
 protected:
  ReplacingFiles() { fs::create_directories(folder_); }
  ~ReplacingFiles() override { fs::remove_all(folder_); }

  std::string path() const { return folder_ + "/kept"; }
  static std::span<const std::byte> bytes(std::string_view text) {
    return std::as_bytes(std::span(text.data(), text.size()));
  }
  std::string contents() const {
    std::ifstream file(path(), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  size_t files() const { return size_t(std::distance(fs::directory_iterator(folder_), {})); }
  void save(std::string_view text) const {
    ReplacingFile file(path());
    file.append(bytes(text));
    file.finish();
  }

  std::string folder_ = testing::TempDir() + "/quire_replacing_" + std::to_string(::getpid());
};

TEST_F(ReplacingFiles, AppearWholeAndOnlyWhenTheyAreFinished) {
  save("old");
  ReplacingFile file(path());
  file.append(bytes("ne"));
  file.append(bytes("wer"));
  EXPECT_EQ(contents(), "old");
  file.finish();
  EXPECT_EQ(contents(), "newer");
  EXPECT_EQ(file.size(), 5u);
  EXPECT_EQ(files(), 1u);
  struct stat status {};
  ASSERT_EQ(::stat(path().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
}

TEST_F(ReplacingFiles, LeaveNothingBehindIfTheyAreNotFinished) {
  save("old");
  { ReplacingFile(path()).append(bytes("new")); }
  EXPECT_EQ(contents(), "old");
  EXPECT_EQ(files(), 1u);
}

TEST_F(ReplacingFiles, SayThatTheDiskIsFullAndLeaveTheOldFileAlone) {
  save("old");
  size_t room = 5;
  const auto small_disk = [&](int file, const void* data, size_t count) -> ssize_t {
    if (room == 0) {
      errno = ENOSPC;
      return -1;
    }
    const size_t taken = std::min({count, room, size_t(2)});  // short writes
    room -= taken;
    return ::write(file, data, taken);
  };
  std::string said;
  try {
    ReplacingFile file(path(), small_disk);
    file.append(bytes("1234"));
    file.append(bytes("5678"));
    file.finish();
  } catch (const Error& error) {
    said = error.what();
  }
  EXPECT_THAT(said, testing::HasSubstr("after 5 bytes: No space left on device"));
  EXPECT_EQ(contents(), "old");
  EXPECT_EQ(files(), 1u);
}

TEST_F(ReplacingFiles, TakeOverWhatAKilledProgramHasLeft) {
  std::ofstream(folder_ + "/.kept.part") << "a longer text that was never finished";
  save("new");
  EXPECT_EQ(contents(), "new");
  EXPECT_EQ(files(), 1u);
}

TEST_F(ReplacingFiles, ReplaceNeitherDevicesNorFoldersAndWriteThroughNoLink) {
  EXPECT_THROW(ReplacingFile("/dev/null"), Error);
  EXPECT_THROW(ReplacingFile{folder_}, Error);
  EXPECT_THROW(ReplacingFile(folder_ + "/"), Error);
  EXPECT_THROW(ReplacingFile(folder_ + "/nowhere/kept"), Error);
  save("old");
  fs::create_symlink(path(), folder_ + "/.other.part");
  EXPECT_THROW(ReplacingFile(folder_ + "/other"), Error);
  EXPECT_EQ(contents(), "old");
}

TEST_F(ReplacingFiles, AreWrittenByOneAtATime) {
  ReplacingFile first(path());
  EXPECT_THROW(ReplacingFile{path()}, Error);
  first.append(bytes("first"));
  first.finish();
  save("second");
  EXPECT_EQ(contents(), "second");
}

}  // namespace
}  // namespace quire
