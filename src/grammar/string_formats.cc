#include "grammar/string_formats.h"

#include <map>
#include <set>

#include <fmt/format.h>

#include "base/error.h"

namespace quire::grammar {
namespace {

const std::string kDate =
    "(?:[1-9][0-9]{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|"
    "02-(?:0[1-9]|1[0-9]|2[0-8]))|(?:[1-9][0-9](?:0[48]|[2468][048]|[13579][26])|(?:[2468][048]|[13579][26])"
    "00)-02-29)";
const std::string kTime =
    R"((?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9]))";
// Without two hyphens together: after two letters they would mean that the rest is Punycode, which not everything is.
const std::string kLabel = "[A-Za-z0-9](?:-?[A-Za-z0-9]){0,29}";
const std::string kOctet = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])";
const std::string kIpv4 = fmt::format(R"({0}\.{0}\.{0}\.{0})", kOctet);
const std::string kPathCharacter = R"((?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2}))";

std::string ipv6() {
  const std::string h = "[0-9A-Fa-f]{1,4}";
  std::string all = fmt::format("(?:{}:){{7}}{}", h, h);
  // `before` groups, two colons, `after` groups: seven in all at the most.
  for (int before = 0; before <= 7; ++before) {
    for (int after = 0; before + after <= 7; ++after) {
      all += '|';
      if (before > 0) all += fmt::format("(?:{}:){{{}}}", h, before) + ":";
      if (before == 0) all += "::";
      if (after > 0) all += fmt::format("(?:{}:){{{}}}{}", h, after - 1, h);
    }
  }
  return "(?:" + all + ")";
}

std::string uri() {
  const std::string host = fmt::format(R"((?:{}|{}(?:\.{}){{0,3}}|\[{}\]))", kIpv4, kLabel, kLabel, ipv6());
  const std::string tail = fmt::format(R"((?:\?(?:{0}|[/?])*)?(?:#(?:{0}|[/?])*)?)", kPathCharacter);
  return fmt::format(R"([A-Za-z][A-Za-z0-9+.-]*:(?://{0}(?::[0-9]{{1,4}})?(?:/{1}*)*|{1}+(?:/{1}*)*){2})",
                     host, kPathCharacter, tail);
}

std::string duration() {
  const std::string n = "[0-9]{1,9}";
  const std::string time = fmt::format("T(?:{0}H(?:{0}M(?:{0}S)?)?|{0}M(?:{0}S)?|{0}S)", n);
  const std::string date = fmt::format("(?:{0}D|{0}M(?:{0}D)?|{0}Y(?:{0}M(?:{0}D)?)?)", n);
  return fmt::format("P(?:{0}W|{1}(?:{2})?|{2})", n, date, time);
}

}  // namespace

std::optional<std::string> format_pattern(std::string_view format) {
  static const std::map<std::string, std::string, std::less<>> kPatterns = {
      {"date", kDate},
      {"time", kTime},
      {"date-time", kDate + "T" + kTime},
      {"duration", duration()},
      {"uuid", "[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"},
      {"email",
       fmt::format(R"([A-Za-z0-9_+%-]{{1,20}}(?:\.[A-Za-z0-9_+%-]{{1,20}}){{0,2}}@{0}(?:\.{0}){{1,3}})",
                   kLabel)},
      {"hostname", fmt::format(R"({0}(?:\.{0}){{0,3}})", kLabel)},
      {"ipv4", kIpv4},
      {"ipv6", ipv6()},
      {"uri", uri()},
      {"uri-reference", fmt::format("(?:{}|(?:/{}+)+)", uri(), kPathCharacter)},
      {"json-pointer", "(?:/(?:[^~/]|~[01])*)*"},
  };
  static const std::set<std::string, std::less<>> kRefused = {
      "idn-email", "idn-hostname", "iri", "iri-reference", "uri-template", "relative-json-pointer", "regex"};
  if (kRefused.contains(format))
    throw Error("the schema's keyword 'format' cannot be '{}': it is not supported", format);
  const auto found = kPatterns.find(format);
  return found == kPatterns.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace quire::grammar
