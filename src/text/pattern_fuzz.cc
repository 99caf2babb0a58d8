// Any bytes as a pattern, a zero byte, and a text: an Error is fine. What it says of a text that goes on holds of the whole, what it
// finds stands there, and both end in time.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/bounded_work.h"
#include "base/check.h"
#include "base/error.h"
#include "text/pattern.h"
#include "text/utf8.h"

namespace {

using namespace quire;
using Match = Pattern::Match;

constexpr size_t kMostLooks = 10;  // at which a text is looked at, and is cut

bool same(const Pattern::Found& one, const Pattern::Found& other) {
  return one.begin == other.begin && one.end == other.end && one.groups == other.groups;
}

void look_at(const Pattern& pattern, std::string_view text, size_t at) {
  Pattern::Found whole;
  const Match match = pattern.match_at(text, at, true, whole);
  CHECK(match != Match::more);
  if (match == Match::yes) {
    CHECK(whole.begin == at && whole.end >= at && whole.end <= text.size());
    CHECK(whole.end > at || pattern.may_be_empty());
    CHECK(at == text.size() || pattern.may_begin_with(text[at]));
    CHECK(whole.groups.size() <= pattern.group_names().size());
  }
  for (size_t end = at, looks = 0; end < text.size() && looks < kMostLooks;
       end += utf8_length(text[end]), ++looks) {
    Pattern::Found found;
    const Match early = pattern.match_at(text.substr(0, end), at, false, found);
    if (early == Match::more || early == Match::too_much || match == Match::too_much) continue;
    CHECK(early == match);
    CHECK(early == Match::no || same(found, whole));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const BoundedWork work(size, {.seconds = 4, .seconds_per_byte = 1e-3});
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const size_t end = std::min(all.find('\0'), size);
  const std::string source(all.substr(0, end));
  const std::string text = replace_broken_utf8(all.substr(std::min(size, end + 1)));
  try {
    const Pattern pattern(source);
    for (size_t at = 0, looks = 0; at < text.size() && looks < kMostLooks;
         at += utf8_length(text[at]), ++looks)
      look_at(pattern, text, at);
    Pattern::Patience patience = Pattern::patience_for(text);
    for (size_t at = 0; at <= text.size();) {
      Pattern::Found found;
      if (!pattern.find(text, at, found, patience)) break;
      CHECK(found.begin >= at && found.begin <= found.end && found.end <= text.size());
      at = found.end > at ? found.end : at + (at < text.size() ? utf8_length(text[at]) : 1);
    }
  } catch (const Error&) {
  }
  return 0;
}
