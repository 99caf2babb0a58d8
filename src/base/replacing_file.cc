#include "base/replacing_file.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"

namespace quire {

ReplacingFile::ReplacingFile(const std::string& path)
    : ReplacingFile(path,
                    [](int file, const void* data, size_t bytes) { return ::write(file, data, bytes); }) {}

ReplacingFile::ReplacingFile(const std::string& path, Write write) : path_(path), write_(std::move(write)) {
  const std::filesystem::path whole(path);
  if (!whole.has_filename()) throw Error("cannot write {}: it is not the name of a file", path);
  const std::filesystem::path folder = whole.has_parent_path() ? whole.parent_path() : ".";
  folder_ = folder.string();
  partial_path_ = (folder / ("." + whole.filename().string() + ".part")).string();
  // A device or a folder of that name must not be replaced by a file.
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode))
    throw Error("cannot write {}: it is there already and is not a regular file", path);
  open();
}

void ReplacingFile::open() {
  do {
    file_ = ::open(partial_path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (file_ < 0) throw Error("cannot write {}: {}", partial_path_, std::strerror(errno));
  } while (!take_over());
}

bool ReplacingFile::take_over() {
  const auto give_up = [&] { ::close(std::exchange(file_, -1)); };
  // The lock goes with its process, however that ends.
  if (::flock(file_, LOCK_EX | LOCK_NB) != 0) {
    const int error = errno;
    give_up();
    if (error == EWOULDBLOCK) throw Error("cannot write {}: somebody else is writing it just now", path_);
    throw Error("cannot write {}: {}", partial_path_, std::strerror(error));
  }
  struct stat opened {
  }, named{};
  const bool still_there = ::fstat(file_, &opened) == 0 && ::lstat(partial_path_.c_str(), &named) == 0 &&
                           opened.st_ino == named.st_ino && opened.st_dev == named.st_dev;
  if (!still_there) {
    give_up();
    return false;
  }
  if (!S_ISREG(opened.st_mode) || ::ftruncate(file_, 0) != 0 || ::fchmod(file_, 0600) != 0) {
    give_up();
    throw Error("cannot write {}: {} is in the way", path_, partial_path_);
  }
  return true;
}

ReplacingFile::~ReplacingFile() {
  if (file_ < 0) return;
  ::unlink(partial_path_.c_str());
  ::close(file_);
}

void ReplacingFile::fail(const char* what) const {
  const int error = errno;
  throw Error("cannot {} {} after {} bytes: {}", what, path_, size_, std::strerror(error));
}

void ReplacingFile::append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write_(file_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written == 0) errno = ENOSPC;
    if (written <= 0) fail("write");
    size_ += uint64_t(written);
    bytes = bytes.subspan(size_t(written));
  }
}

void ReplacingFile::finish() {
  // The bytes first, then the name: a name must never stand for bytes that a power cut has taken.
  if (::fsync(file_) != 0) fail("write");
  if (::rename(partial_path_.c_str(), path_.c_str()) != 0) fail("give its name to");
  ::close(std::exchange(file_, -1));
  const int folder = ::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return;  // the name is given; when it reaches the disk is the system's to say
  ::fsync(folder);
  ::close(folder);
}

}  // namespace quire
