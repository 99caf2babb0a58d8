#include "base/memory.h"

#include <algorithm>
#include <fstream>
#include <string>

#include <malloc.h>

namespace quire {
namespace {

size_t read_number(const char* path) {
  std::ifstream file(path);
  size_t value = 0;
  return file >> value ? value : 0;  // "max" is no number
}

size_t read_entry(const char* wanted) {
  size_t bytes = 0;
  std::ifstream file("/proc/meminfo");
  for (std::string key; file >> key;) {
    size_t value = 0;
    if (key == wanted && file >> value) bytes = value * 1024;
  }
  return bytes;
}

}  // namespace

size_t total_memory() {
  const size_t total = read_entry("MemTotal:"), limit = read_number("/sys/fs/cgroup/memory.max");
  return limit == 0 ? total : std::min(total, limit);
}

size_t available_memory() {
  const size_t available = read_entry("MemAvailable:");
  const size_t limit = read_number("/sys/fs/cgroup/memory.max");
  if (limit == 0) return available;
  return std::min(available, limit - std::min(limit, read_number("/sys/fs/cgroup/memory.current")));
}

void return_free_memory() {
#ifdef __GLIBC__
  ::malloc_trim(0);
#endif
}

void keep_large_blocks_apart() {
#ifdef __GLIBC__
  constexpr int kLargeBlock = 256 << 10;
  ::mallopt(M_MMAP_THRESHOLD, kLargeBlock);
  ::mallopt(M_TRIM_THRESHOLD, 4 * kLargeBlock);
#endif
}

}  // namespace quire
