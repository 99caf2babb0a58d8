#include "base/random_bytes.h"

#include <cerrno>
#include <cstring>

#include <sys/random.h>

#include "base/error.h"

namespace quire {

void fill_random(std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t got = ::getrandom(bytes.data(), bytes.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) throw Error("the system gives no random bytes: {}", std::strerror(errno));
    bytes = bytes.subspan(size_t(got));
  }
}

}  // namespace quire
