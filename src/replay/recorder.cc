#include "replay/recorder.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"

namespace quire {

Recorder::Recorder(RecorderOptions options, const RecordingHead& head) : options_(std::move(options)) {
  const std::vector<std::byte> first = head_part(head);
  if (first.size() > options_.most_bytes)
    throw Error("--record-bytes {} is too little: the head of a recording has {} bytes", options_.most_bytes,
                first.size());
  // Whoever could put a link there would choose what is written to.
  file_ = ::open(options_.path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (file_ < 0) {
    throw Error("cannot record to {}: {}{}", options_.path, std::strerror(errno),
                errno == EEXIST ? "; a recording is never written over: name another file" : "");
  }
  if (!append(first)) {
    const int problem = errno;
    ::close(file_);
    ::unlink(options_.path.c_str());
    throw Error("cannot record to {}: {}", options_.path, std::strerror(problem));
  }
  waiting_.reserve(kMostWaiting);
  thread_ = std::thread([this] { run(); });
}

Recorder::~Recorder() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
  ::close(file_);
}

void Recorder::add(Make make) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (waiting_.size() == kMostWaiting) return;
    waiting_.push_back(std::move(make));  // there is room: it allocates nothing
  }
  wake_.notify_one();
}

void Recorder::run() {
  std::vector<Make> taken;
  taken.reserve(kMostWaiting);
  while (true) {
    bool last = false;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return stopping_ || !waiting_.empty(); });
      taken.swap(waiting_);
      last = stopping_;
    }
    for (const Make& make : taken) write(make);
    taken.clear();
    if (last) return;
  }
}

void Recorder::write(const Make& make) {
  if (ended_) return;
  try {
    const std::vector<std::byte> part = answer_part(make());
    if (part.size() > options_.most_bytes - size_) {
      end(fmt::format("{} has its {} bytes (--record-bytes)", options_.path, options_.most_bytes));
    } else if (!append(part)) {
      end(fmt::format("cannot write to {}: {}", options_.path, std::strerror(errno)));
    }
  } catch (const std::exception&) {
    // There is no memory for this one: it is left out.
  }
}

bool Recorder::append(std::span<const std::byte> bytes) {
  size_t written = 0;
  while (written < bytes.size()) {
    const ssize_t count = ::write(file_, bytes.data() + written, bytes.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      const int problem = errno;
      // What is half there would be read as cut short; that it cannot be taken back does no harm.
      (void)!::ftruncate(file_, off_t(size_));
      errno = problem;
      return false;
    }
    written += size_t(count);
  }
  size_ += bytes.size();
  return true;
}

void Recorder::end(const std::string& why) {
  ended_ = true;
  if (options_.on_end) options_.on_end("recording has ended: " + why);
}

}  // namespace quire
