#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/keyed_hash.h"
#include "kv/prefix/cache_salt.h"

namespace quire {

// Makes the salts under which requests find pages: of the API key that asks and of the `cache_salt` that a request may bring.
// They are hashes under a secret of this server, so that nobody can make the salt of another, and whoever reads one in a
// snapshot cannot try keys on it. Any thread.
class CacheSalts {
 public:
  enum class Sharing { within_keys, between_keys };
  CacheSalts(const HashSecret& secret, const std::vector<std::string>& keys, Sharing sharing);

  // `key`: its number, from 1 on; 0: there are no keys.
  uint64_t of_key(size_t key) const { return key == 0 ? 0 : keys_.at(key - 1); }
  CacheSalt of(size_t key, std::string_view cache_salt) const;

 private:
  HashSecret secret_;
  std::vector<uint64_t> keys_;  // 0 where keys share
};

// The secret of a folder of snapshots; a new one if it has none yet. Throws Error if there is one that cannot be read.
HashSecret secret_of_folder(const std::string& folder);
// Keeps it for the next run, readable by its owner only: without it what is salted in snapshots is not found again. One that is
// there stays. Throws Error if it cannot be written.
void keep_secret(const std::string& folder, const HashSecret& secret);

}  // namespace quire
