#include "remote/store_address.h"

#include <charconv>
#include <optional>
#include <string_view>

#include <fmt/format.h>
#include <sys/un.h>

#include "base/error.h"

namespace quire {
namespace {

constexpr std::string_view kForms =
    "--kv-remote wants redis://[:PASSWORD@]HOST[:PORT][/DATABASE] or redis+unix:///PATH[?db=DATABASE]";

template <class Number>
std::optional<Number> number_from(std::string_view text) {
  Number number = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (problem != std::errc() || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return number;
}

std::string unescaped(std::string_view text, const char* what) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    uint8_t byte = 0;
    const std::string_view digits = text.substr(i + 1, 2);
    const auto [end, problem] = std::from_chars(digits.data(), digits.data() + digits.size(), byte, 16);
    if (digits.size() < 2 || problem != std::errc() || end != digits.data() + 2)
      throw Error("{}: {} has a % that two hexadecimal digits do not follow", kForms, what);
    out += char(byte);
    i += 2;
  }
  return out;
}

void read_database(StoreAddress& address, std::string_view text) {
  const auto number = number_from<uint32_t>(text);
  if (!number) throw Error("{}: the database must be a number", kForms);
  address.database = *number;
}

void read_host(StoreAddress& address, std::string_view text) {
  std::string_view port;
  if (text.starts_with('[')) {  // an address of IPv6
    const size_t end = text.find(']');
    if (end == std::string_view::npos) throw Error("{}: a ] is missing", kForms);
    address.host = text.substr(1, end - 1);
    text.remove_prefix(end + 1);
    if (!text.empty() && text.front() != ':') throw Error("{}: after ] only a port may come", kForms);
    port = text.empty() ? text : text.substr(1);
    if (!text.empty() && port.empty()) throw Error("{}: the port is missing", kForms);
  } else {
    const size_t colon = text.find(':');
    address.host = text.substr(0, colon);
    if (colon != std::string_view::npos) {
      port = text.substr(colon + 1);
      if (port.empty()) throw Error("{}: the port is missing", kForms);
    }
  }
  if (address.host.empty()) throw Error("{}: the host is missing", kForms);
  if (port.empty()) return;
  const auto number = number_from<uint16_t>(port);
  if (!number || *number == 0) throw Error("{}: a port is a number from 1 to 65535", kForms);
  address.port = *number;
}

}  // namespace

StoreAddress StoreAddress::parse(const std::string& text) {
  constexpr std::string_view kHost = "redis://", kSocket = "redis+unix://";
  StoreAddress address;
  std::string_view rest = text;
  const bool is_socket = rest.starts_with(kSocket);
  if (!is_socket && !rest.starts_with(kHost)) {
    throw Error("{}{}", kForms,
                rest.starts_with("rediss://")
                    ? "; TLS is for a proxy such as stunnel, whose end on this machine is named here"
                    : "");
  }
  rest.remove_prefix(is_socket ? kSocket.size() : kHost.size());
  for (const char c : text) {
    if (static_cast<unsigned char>(c) <= ' ' || c == 127)
      throw Error("{}: there is no room for blanks in it", kForms);
  }
  // The last: a password may have one too, though it should not.
  if (const size_t at = rest.substr(0, is_socket ? rest.find('/') : rest.size()).rfind('@');
      at != std::string_view::npos) {
    const std::string_view who = rest.substr(0, at);
    const size_t colon = who.find(':');
    if (colon == std::string_view::npos) throw Error("{}: a password begins with ':'", kForms);
    address.user = unescaped(who.substr(0, colon), "the user");
    address.password = unescaped(who.substr(colon + 1), "the password");
    if (address.password.empty()) throw Error("{}: the password is missing", kForms);
    rest.remove_prefix(at + 1);
  }
  if (is_socket) {
    if (const size_t query = rest.rfind("?db="); query != std::string_view::npos) {
      read_database(address, rest.substr(query + 4));
      rest = rest.substr(0, query);
    }
    address.socket = unescaped(rest, "the path");
    if (!address.socket.starts_with('/') || address.socket.size() < 2)
      throw Error("{}: a socket's path begins with '/'", kForms);
    if (address.socket.size() >= sizeof(sockaddr_un::sun_path))
      throw Error("{}: a socket's path has fewer than {} bytes", kForms, sizeof(sockaddr_un::sun_path));
    return address;
  }
  if (const size_t slash = rest.find('/'); slash != std::string_view::npos) {
    if (slash + 1 < rest.size()) read_database(address, rest.substr(slash + 1));
    rest = rest.substr(0, slash);
  }
  read_host(address, rest);
  return address;
}

std::string StoreAddress::text() const {
  if (!socket.empty())
    return fmt::format("redis+unix://{}{}", socket, database == 0 ? "" : fmt::format("?db={}", database));
  const bool is_ipv6 = host.find(':') != std::string::npos;
  return fmt::format("redis://{}{}{}:{}/{}", is_ipv6 ? "[" : "", host, is_ipv6 ? "]" : "", port, database);
}

bool StoreAddress::is_local() const {
  return !socket.empty() || host == "localhost" || host == "::1" || host.starts_with("127.");
}

}  // namespace quire
