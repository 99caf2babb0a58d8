#include "hub/partial_blob.h"

#include <cerrno>
#include <cstring>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/error.h"
#include "hub/transfer_words.h"

namespace quire {
namespace {

std::filesystem::path incomplete_path(const std::filesystem::path& blob) {
  return blob.string() + ".incomplete";
}

}  // namespace

PartialBlob::PartialBlob(const std::filesystem::path& blob, const RepoFile& file)
    : blob_(blob), path_(incomplete_path(blob)), file_(file) {
  // 0666 and the user's mask, as all that is in this cache.
  handle_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
  struct stat status {};
  if (handle_ < 0 || ::fstat(handle_, &status) != 0)
    throw Error("cannot write {}: {}", path_.string(), std::strerror(errno));
  try {
    if (!S_ISREG(status.st_mode)) throw Error("cannot write {}: it is not a regular file", path_.string());
    digest_.emplace(file_.digest, file_.bytes);
    if (uint64_t(status.st_size) > file_.bytes)
      start_again();
    else
      read_what_is_there();
  } catch (...) {
    ::close(handle_);
    throw;
  }
}

PartialBlob::~PartialBlob() {
  if (handle_ >= 0) ::close(handle_);
}

void PartialBlob::read_what_is_there() {
  std::vector<std::byte> bytes(size_t(1) << 20);
  while (true) {
    const ssize_t got = ::read(handle_, bytes.data(), bytes.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw Error("cannot read {}: {}", path_.string(), std::strerror(errno));
    if (got == 0) return;
    digest_->add(std::span(bytes).first(size_t(got)));
    size_ += uint64_t(got);
  }
}

void PartialBlob::fail() const {
  const int error = errno;
  const char* advice =
      error == ENOSPC || error == EDQUOT ? "; make room and pull again: what is there is kept" : "";
  throw Error("cannot write {} after {}: {}{}", path_.string(), bytes_in_words(size_), std::strerror(error),
              advice);
}

void PartialBlob::append(std::span<const std::byte> bytes) {
  if (bytes.size() > missing())
    throw Error("the hub sends more than the {} that {} should have", bytes_in_words(file_.bytes),
                file_.path);
  while (!bytes.empty()) {
    const ssize_t written = ::write(handle_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written == 0) errno = ENOSPC;
    if (written <= 0) fail();
    digest_->add(bytes.first(size_t(written)));
    size_ += uint64_t(written);
    bytes = bytes.subspan(size_t(written));
  }
}

void PartialBlob::start_again() {
  if (::ftruncate(handle_, 0) != 0 || ::lseek(handle_, 0, SEEK_SET) != 0) fail();
  size_ = 0;
  digest_.emplace(file_.digest, file_.bytes);
}

bool PartialBlob::finish() {
  CHECK(missing() == 0);
  if (digest_->finish() != file_.digest) {
    ::unlink(path_.c_str());
    return false;
  }
  // The bytes first, then the name: the name must never stand for bytes that a power cut has taken.
  if (::fsync(handle_) != 0 || ::rename(path_.c_str(), blob_.c_str()) != 0) fail();
  return true;
}

uint64_t PartialBlob::size_of(const std::filesystem::path& blob) {
  std::error_code none;
  const uintmax_t size = std::filesystem::file_size(incomplete_path(blob), none);
  return none ? 0 : uint64_t(size);
}

}  // namespace quire
