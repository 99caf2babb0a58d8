#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "base/keyed_hash.h"
#include "kv/tiers/page_store.h"

namespace quire {

// The bytes of a key file: 16 to 4096 of them, without the end of the last line. Throws Error.
std::vector<std::byte> read_store_key(const std::string& path);

// Tags by BLAKE2b with this key, or with one that everybody knows if it is empty. OpenSSL's. Throws Error, which says what to install,
// if it is not there.
std::shared_ptr<const PageMac> make_page_mac(std::span<const std::byte> key);

// The secret under which salts are made (server/cache_salts.h) by all servers that have this key.
HashSecret salt_secret(const PageMac& mac);

}  // namespace quire
