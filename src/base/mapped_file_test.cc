#include "base/mapped_file.h"

#include <cstdio>
#include <fstream>
#include <string>

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"

namespace quire {
namespace {

TEST(MappedFile, IsReadAgainAfterItsPagesWereForgotten) {
  const std::string path = testing::TempDir() + "mapped_file_test.bin";
  std::string content(300'000, '\0');
  for (size_t i = 0; i < content.size(); ++i) content[i] = char(i * 31 % 251);
  std::ofstream(path, std::ios::binary) << content;
  const MappedFile file(path);
  const auto text = [&] {
    return std::string(reinterpret_cast<const char*>(file.bytes().data()), content.size());
  };
  EXPECT_EQ(text(), content);
  forget_pages(file.bytes().subspan(5, 100'000));
  forget_pages(file.bytes().subspan(200'000, 10));  // no whole page
  forget_pages({});
  EXPECT_EQ(text(), content);
  std::remove(path.c_str());
}

TEST(MappedFile, APipeADeviceOrAFolderIsRefusedAtOnce) {
  const std::string pipe = testing::TempDir() + "mapped_file_test_" + std::to_string(::getpid());
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& path : {pipe, std::string("/dev/zero"), testing::TempDir()}) {
    try {
      const MappedFile file(path);
      ADD_FAILURE() << path << " was mapped";
    } catch (const Error& error) {
      EXPECT_EQ(error.what(), path + " is not a regular file");
    }
  }
  std::remove(pipe.c_str());
}

}  // namespace
}  // namespace quire
