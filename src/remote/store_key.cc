#include "remote/store_key.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>

#include <fcntl.h>
#include <unistd.h>

#include "base/error.h"

namespace quire {
namespace {

constexpr size_t kShortestKey = 16, kLongestKey = 4096;

}  // namespace

std::vector<std::byte> read_store_key(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0)
    throw Error("cannot open {}, the file of --kv-remote-key-file: {}", path, std::strerror(errno));
  std::vector<std::byte> key(kLongestKey + 2);
  size_t size = 0;
  while (size < key.size()) {
    const ssize_t got = ::read(file, key.data() + size, key.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    size += size_t(got);
  }
  ::close(file);
  key.resize(size);
  for (const char end : {'\n', '\r'}) {
    if (!key.empty() && key.back() == std::byte(end)) key.pop_back();
  }
  if (key.size() < kShortestKey || key.size() > kLongestKey)
    throw Error("{} has {} a key: {} to {} bytes are wanted, such as `openssl rand -hex 32` writes", path,
                key.size() < kShortestKey ? "too few bytes for" : "too many bytes for", kShortestKey,
                kLongestKey);
  return key;
}

HashSecret salt_secret(const PageMac& mac) {
  constexpr std::string_view kWords = "quire salts of all who have this key";
  const std::span<const std::byte> parts[] = {std::as_bytes(std::span(kWords))};
  const StoreTag tag = mac.of(parts);
  HashSecret secret;
  std::copy_n(tag.begin(), secret.size(), secret.begin());
  return secret;
}

}  // namespace quire
