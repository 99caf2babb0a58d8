#pragma once

#include <filesystem>
#include <functional>

namespace quire {

// A lock between processes: flock on a file, as Hugging Face's own programs lock what they fetch. It goes with its process,
// however that ends.
class CacheLock {
 public:
  // Waits until it is held; `on_wait` is called once if somebody else has it. Throws Error if the file cannot be made.
  CacheLock(const std::filesystem::path& path, const std::function<void()>& on_wait);
  ~CacheLock();
  CacheLock(const CacheLock&) = delete;
  CacheLock& operator=(const CacheLock&) = delete;

  // Does somebody hold it just now?
  static bool is_held(const std::filesystem::path& path);

 private:
  int file_ = -1;
};

}  // namespace quire
