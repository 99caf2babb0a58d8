#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace quire {

// A whole file as read-only memory. Throws Error if it cannot be opened or mapped. A file that shrinks while
// it is mapped is not guarded against.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::span<const std::byte> bytes_;
};

// Gives the whole pages among these bytes of a mapped file back to the system, until they are read again.
void forget_pages(std::span<const std::byte> bytes);

}  // namespace quire
