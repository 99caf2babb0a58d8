#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include <sys/types.h>

namespace quire {

// A file that appears under its name complete and on the disk, or not at all: whatever ends the program, whoever opens
// the name finds the old file or the new one. Until then it is a hidden file in the same folder, which is removed if
// finish() is not reached; one that a killed program has left is taken over by the next who writes the same file.
// Only its owner may read it. Throws Error if the disk does not take it.
class ReplacingFile {
 public:
  using Write = std::function<ssize_t(int file, const void* data, size_t bytes)>;  // as write(2)
  // Only one may write a file at a time: the second is refused.
  explicit ReplacingFile(const std::string& path);
  ReplacingFile(const std::string& path, Write write);  // for tests: a disk that is full
  ~ReplacingFile();
  ReplacingFile(const ReplacingFile&) = delete;
  ReplacingFile& operator=(const ReplacingFile&) = delete;

  void append(std::span<const std::byte> bytes);
  // Gives it its name.
  void finish();

  uint64_t size() const { return size_; }

 private:
  void open();
  bool take_over();  // false: another process has finished or removed what was opened
  [[noreturn]] void fail(const char* what) const;

  std::string path_;
  std::string folder_;
  std::string partial_path_;
  Write write_;
  int file_ = -1;
  uint64_t size_ = 0;
};

}  // namespace quire
