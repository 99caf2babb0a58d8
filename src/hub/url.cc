#include "hub/url.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

namespace quire {
namespace {

constexpr size_t kLongestUrl = 16384;  // the hub's signed addresses have some 1,500

bool is_host(std::string_view host) {
  if (host.empty() || host.size() > 255) return false;
  const bool ip6 = host.front() == '[' && host.back() == ']';
  return std::ranges::all_of(ip6 ? host.substr(1, host.size() - 2) : host, [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '-' || c == '_' ||
           (ip6 && c == ':');
  });
}

std::string escaped(std::string_view text, bool slashes) {
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '_' || c == '.' || c == '~' || (c == '/' && !slashes);
    out += plain ? std::string(1, c) : fmt::format("%{:02X}", uint8_t(c));
  }
  return out;
}

}  // namespace

std::string Url::text() const {
  const bool usual = port == (scheme == "https" ? 443 : 80);
  return scheme + "://" + host + (usual ? "" : fmt::format(":{}", port)) + rest;
}

bool Url::same_origin(const Url& other) const {
  return scheme == other.scheme && host == other.host && port == other.port;
}

std::optional<Url> parse_url(std::string_view text) {
  if (text.size() > kLongestUrl ||
      std::ranges::any_of(text, [](char c) { return c <= ' ' || c > '~' || c == '\\'; }))
    return {};
  const size_t colon = text.find("://");
  if (colon == text.npos) return {};
  Url url;
  url.scheme = text.substr(0, colon);
  std::ranges::transform(url.scheme, url.scheme.begin(),
                         [](unsigned char c) { return char(std::tolower(c)); });
  if (url.scheme != "http" && url.scheme != "https") return {};
  text.remove_prefix(colon + 3);
  const size_t end = std::min(text.find_first_of("/?#"), text.size());
  std::string_view host = text.substr(0, end);
  url.rest = text.substr(end, text.find('#') - end);
  if (!url.rest.starts_with('/')) url.rest.insert(0, "/");

  url.port = url.scheme == "https" ? 443 : 80;
  const size_t bracket = host.find(']');
  if (const size_t at = host.find(':', bracket == host.npos ? 0 : bracket); at != host.npos) {
    const std::string_view digits = host.substr(at + 1);
    const auto [stop, problem] = std::from_chars(digits.data(), digits.data() + digits.size(), url.port);
    if (problem != std::errc() || stop != digits.data() + digits.size() || url.port == 0) return {};
    host = host.substr(0, at);
  }
  url.host = host;
  std::ranges::transform(url.host, url.host.begin(), [](unsigned char c) { return char(std::tolower(c)); });
  if (!is_host(url.host)) return {};  // a user's name before an @ is none either
  return url;
}

std::optional<Url> redirected(const Url& from, std::string_view location) {
  std::string whole;
  if (location.find("://") < location.find_first_of("/?#")) {
    whole = location;
  } else if (location.starts_with("//")) {
    whole = from.scheme + ":" + std::string(location);
  } else {
    Url here = from;
    here.rest = "";
    const std::string_view path = std::string_view(from.rest).substr(0, from.rest.find('?'));
    const std::string folder(path.substr(0, path.rfind('/') + 1));
    whole = here.text() + (location.starts_with('/') ? "" : folder) + std::string(location);
  }
  std::optional<Url> to = parse_url(whole);
  if (to && from.scheme == "https" && to->scheme != "https") return {};
  return to;
}

std::string escaped_path(std::string_view path) {
  return escaped(path, false);
}

std::string escaped_part(std::string_view part) {
  return escaped(part, true);
}

std::string printable(std::string_view text, size_t longest) {
  std::string out;
  for (const char c : text.substr(0, longest)) out += c < ' ' || c > '~' ? '?' : c;
  return out + (text.size() > longest ? "..." : "");
}

}  // namespace quire
