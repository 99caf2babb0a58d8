#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace quire {

// An address of http or https, in the parts that decide who is asked.
struct Url {
  std::string scheme;  // "http" or "https"
  std::string host;    // lower case; an IPv6 address in brackets
  uint16_t port = 0;
  std::string rest;  // path and query: begins with a slash

  std::string text() const;
  // The same program at the same place: what may see a token.
  bool same_origin(const Url& other) const;
};

// Nothing if it is of another scheme, names a user, or has characters that no address has.
std::optional<Url> parse_url(std::string_view text);

// Where a reply's Location leads from here; nothing if that is no address, or if it leads from https to http.
std::optional<Url> redirected(const Url& from, std::string_view location);

// A path as part of an address: what is special there is escaped, but for the slashes.
std::string escaped_path(std::string_view path);
// The same, slashes too.
std::string escaped_part(std::string_view part);

// What came from outside, as a message may show it: one line, no control characters, cut where it is too long.
std::string printable(std::string_view text, size_t longest = 200);

}  // namespace quire
