#pragma once

#include <cstdint>
#include <string>

namespace quire {

// Where a store is, as --kv-remote has it: redis://[[USER]:PASSWORD@]HOST[:PORT][/DATABASE] or redis+unix:///PATH[?db=DATABASE], with
// [[USER]:PASSWORD@] before the path as well. What is written %XX is that byte.
struct StoreAddress {
  std::string host;    // empty: a socket of this machine
  std::string socket;  // its path; empty: a host
  uint16_t port = 6379;
  std::string user, password;  // empty: none
  uint32_t database = 0;

  // Throws Error saying what is wrong, without the password.
  static StoreAddress parse(const std::string& text);
  // For people, without the password.
  std::string text() const;
  // Whether what is sent leaves this machine.
  bool is_local() const;
};

}  // namespace quire
