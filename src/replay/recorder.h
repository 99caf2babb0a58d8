#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "replay/recording.h"

namespace quire {

struct RecorderOptions {
  std::string path;
  uint64_t most_bytes = uint64_t(256) << 20;
  // Told once if nothing more is recorded: the file is full, or the disk takes no more. On the recorder's thread.
  std::function<void(const std::string& why)> on_end = {};
};

// Writes answers to a file that only its owner may read, on a thread of its own. Any thread may add; nobody waits for the
// disk.
class Recorder {
 public:
  // Throws Error if the file is there already or cannot be made.
  Recorder(RecorderOptions options, const RecordingHead& head);
  // Writes what waits.
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  // `make` is called on the recorder's thread. An answer for which there is no memory, or behind which too many wait, is left
  // out.
  using Make = std::function<RecordedAnswer()>;
  void add(Make make) noexcept;

 private:
  static constexpr size_t kMostWaiting = 1024;

  void run();
  void write(const Make& make);
  // All of it or nothing; false: the disk takes no more.
  bool append(std::span<const std::byte> bytes);
  void end(const std::string& why);

  const RecorderOptions options_;
  int file_ = -1;
  uint64_t size_ = 0;  // of what is whole; the recorder's thread only, as the next
  bool ended_ = false;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<Make> waiting_;
  bool stopping_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace quire
