#include "base/mapped_file.h"

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"

namespace quire {

MappedFile::MappedFile(const std::string& path) : path_(path) {
  // A pipe would keep whoever opens it waiting: hence O_NONBLOCK. Of regular files it changes nothing.
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) throw Error("cannot open {}: {}", path, std::strerror(errno));
  struct stat status {};
  if (::fstat(file, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(file);
    throw Error("{} is not a regular file", path);
  }
  if (status.st_size > 0) {
    void* address = ::mmap(nullptr, size_t(status.st_size), PROT_READ, MAP_PRIVATE, file, 0);
    if (address == MAP_FAILED) {
      const int error = errno;
      ::close(file);
      throw Error("cannot map {}: {}", path, std::strerror(error));
    }
    bytes_ = {static_cast<const std::byte*>(address), size_t(status.st_size)};
  }
  ::close(file);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

void forget_pages(std::span<const std::byte> bytes) {
  const uintptr_t page = uintptr_t(::sysconf(_SC_PAGESIZE)),
                  first = reinterpret_cast<uintptr_t>(bytes.data());
  const uintptr_t begin = (first + page - 1) / page * page, end = (first + bytes.size()) / page * page;
  // Nothing depends on it: what the system does not take back is only memory that others might have used.
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

}  // namespace quire
