#include "server/cache_salts.h"

#include <cerrno>
#include <cstring>
#include <optional>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/random_bytes.h"
#include "base/replacing_file.h"

namespace quire {
namespace {

constexpr const char* kSecretName =
    "/.salt_secret";  // no snapshot can have it: their names have no dot in front

uint64_t hash_of(const HashSecret& secret, const std::string& text) {
  const uint64_t hash = keyed_hash(secret, std::as_bytes(std::span(text)));
  return hash == 0 ? 1 : hash;  // 0 says that there is none
}

std::optional<HashSecret> read_secret(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
  if (file < 0 && errno == ENOENT) return std::nullopt;
  if (file < 0) throw Error("cannot open {}: {}", path, std::strerror(errno));
  HashSecret secret;
  struct stat status {};
  const bool good = ::fstat(file, &status) == 0 && S_ISREG(status.st_mode) &&
                    size_t(status.st_size) == secret.size() &&
                    ::read(file, secret.data(), secret.size()) == ssize_t(secret.size());
  ::close(file);
  if (!good)
    throw Error("{} is not the {} bytes of a secret: remove it, and the salts of older snapshots with it",
                path, secret.size());
  return secret;
}

}  // namespace

CacheSalts::CacheSalts(const HashSecret& secret, const std::vector<std::string>& keys, Sharing sharing)
    : secret_(secret) {
  for (const std::string& key : keys)
    keys_.push_back(sharing == Sharing::between_keys ? 0 : hash_of(secret_, "key " + key));
}

CacheSalt CacheSalts::of(size_t key, std::string_view cache_salt) const {
  CacheSalt salt{.key = of_key(key)};
  if (cache_salt.empty()) return salt;
  std::string text = "text ";
  text.append(reinterpret_cast<const char*>(&salt.key), sizeof(salt.key));
  salt.text = hash_of(secret_, text.append(cache_salt));
  return salt;
}

HashSecret secret_of_folder(const std::string& folder) {
  const auto known = read_secret(folder + kSecretName);
  return known ? *known : random_bytes<sizeof(HashSecret)>();
}

void keep_secret(const std::string& folder, const HashSecret& secret) {
  const std::string path = folder + kSecretName;
  if (read_secret(path)) return;
  ReplacingFile file(path);
  file.append(secret);
  file.finish();
}

}  // namespace quire
