#include "hub/cache_lock.h"

#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"

namespace quire {
namespace {

// Whoever held it may have removed it meanwhile; then another has a new file of that name.
bool is_still(int file, const std::filesystem::path& path) {
  struct stat opened {
  }, named{};
  return ::fstat(file, &opened) == 0 && ::stat(path.c_str(), &named) == 0 && opened.st_ino == named.st_ino &&
         opened.st_dev == named.st_dev;
}

void lock(int file, const std::filesystem::path& path, const std::function<void()>& on_wait) {
  if (::flock(file, LOCK_EX | LOCK_NB) == 0) return;
  if (errno == EWOULDBLOCK) {
    on_wait();
    while (::flock(file, LOCK_EX) != 0) {
      if (errno != EINTR) throw Error("cannot lock {}: {}", path.string(), std::strerror(errno));
    }
    return;
  }
  throw Error("cannot lock {}: {}", path.string(), std::strerror(errno));
}

}  // namespace

CacheLock::CacheLock(const std::filesystem::path& path, const std::function<void()>& on_wait) {
  std::error_code problem;
  do {
    if (file_ >= 0) ::close(file_);
    std::filesystem::create_directories(path.parent_path(), problem);
    file_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
    if (file_ < 0) throw Error("cannot lock {}: {}", path.string(), std::strerror(errno));
    try {
      lock(file_, path, on_wait);
    } catch (...) {
      ::close(file_);
      throw;
    }
  } while (!is_still(file_, path));
}

CacheLock::~CacheLock() {
  ::close(file_);
}

bool CacheLock::is_held(const std::filesystem::path& path) {
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (file < 0) return false;
  const bool held = ::flock(file, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  ::close(file);
  return held;
}

}  // namespace quire
