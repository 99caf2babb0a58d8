#include "cluster/socket_address.h"

#include <algorithm>
#include <charconv>

#include <arpa/inet.h>

#include "base/error.h"

namespace quire {
namespace {

constexpr std::string_view kTcp = "tcp://", kIpc = "ipc://";

bool is_port(std::string_view text) {
  uint16_t port = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), port);
  return text == "*" || (problem == std::errc() && end == text.data() + text.size());
}

// A name could mean anything: only numbers are known to be this machine's, and the name that every machine has for itself.
bool is_loopback(const std::string& host) {
  in_addr number{};
  if (::inet_pton(AF_INET, host.c_str(), &number) == 1) return ntohl(number.s_addr) >> 24 == 127;
  return host == "localhost" || host == "[::1]";
}

}  // namespace

Reach reach_of(const std::string& address) {
  const auto wrong = [&]() -> Error {
    return Error(
        "'{}' is no address for a socket: they look like tcp://127.0.0.1:5557 or ipc:///run/quire/events",
        address);
  };
  // Whoever parses it next may read less of it.
  if (std::ranges::any_of(address, [](char c) { return uint8_t(c) <= ' ' || uint8_t(c) > '~'; }))
    throw wrong();
  if (address.starts_with(kIpc) && address.size() > kIpc.size()) return Reach::this_machine;
  const size_t colon = address.rfind(':');
  if (!address.starts_with(kTcp) || colon <= kTcp.size() || !is_port(address.substr(colon + 1)))
    throw wrong();
  return is_loopback(address.substr(kTcp.size(), colon - kTcp.size())) ? Reach::this_machine : Reach::others;
}

}  // namespace quire
