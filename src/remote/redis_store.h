#pragma once

#include <chrono>
#include <memory>

#include "kv/tiers/page_store.h"
#include "remote/store_address.h"

namespace quire {

// How long a store may take. What it has sent when such a time is over is of no use, nor is the connection.
struct StorePatience {
  std::chrono::milliseconds connect{1000};
  std::chrono::milliseconds silence{500};  // without a byte
  std::chrono::milliseconds answer{2000};  // for all of an answer, beside what its bytes take
  double least_bytes_per_s = 1e6;
};

// A Redis, or what speaks its protocol (RESP2): AUTH, SELECT, PING, EXISTS, GET, SET and nothing else. By hiredis. Throws Error, which
// says what to install, if that is not there.
std::shared_ptr<PageStore> open_redis(const StoreAddress& address, const StorePatience& patience = {});

}  // namespace quire
