#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/pattern.h"

#include <cstdint>
#include <new>

#include <pcre2.h>

#include "base/error.h"
#include "text/utf8.h"

namespace quire {
namespace {

constexpr size_t kMostPatternSource = 4096;
constexpr uint32_t kMostStepsHere = 50'000, kMostPatternHeapKiB = 64 << 10, kMostGroups = 64;
// At a place that is easy. What is harder gets eight times as much until it is found out, and that is counted.
constexpr uint32_t kFewSteps = 500, kHarder = 8, kForNothing = 8;
constexpr size_t kFewBytes = 512;

struct FreeCode {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct FreeData {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct FreeContext {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};

// What matching needs besides the pattern: one per thread, reused.
struct PatternScratch {
  std::unique_ptr<pcre2_match_data, FreeData> data{pcre2_match_data_create(kMostGroups + 1, nullptr)};
  std::unique_ptr<pcre2_match_context, FreeContext> context{pcre2_match_context_create(nullptr)};

  PatternScratch() {
    if (!data || !context) throw std::bad_alloc();
    pcre2_set_heap_limit(context.get(), kMostPatternHeapKiB);
  }
};

PatternScratch& pattern_scratch() {
  thread_local PatternScratch instance;
  return instance;
}

}  // namespace

struct Pattern::State {
  std::unique_ptr<pcre2_code, FreeCode> code;

  int match(std::string_view text, size_t at, uint32_t options, uint32_t steps) const {
    PatternScratch& scratch = pattern_scratch();
    pcre2_set_match_limit(scratch.context.get(), steps);
    return pcre2_match(code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at,
                       options | PCRE2_NO_UTF_CHECK, scratch.data.get(), scratch.context.get());
  }
  template <class Value>
  Value known(uint32_t what) const {
    Value value{};
    pcre2_pattern_info(code.get(), what, &value);
    return value;
  }
};

Pattern::Pattern(const std::string& source) {
  if (source.size() > kMostPatternSource)
    throw Error("a pattern has {} bytes; at most {} are allowed", source.size(), kMostPatternSource);
  if (!is_valid_utf8(source)) throw Error("a pattern is not valid UTF-8");
  int error = 0;
  size_t where = 0;
  auto state = std::make_unique<State>();
  state->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(source.data()), source.size(),
                                  PCRE2_UTF | PCRE2_UCP | PCRE2_DOTALL | PCRE2_NEVER_BACKSLASH_C, &error,
                                  &where, nullptr));
  if (!state->code) {
    PCRE2_UCHAR text[256];
    pcre2_get_error_message(error, text, sizeof(text));
    throw Error("the pattern '{}' cannot be used: {} (near byte {})", source,
                reinterpret_cast<const char*>(text), where);
  }
  if (state->known<uint32_t>(PCRE2_INFO_CAPTURECOUNT) > kMostGroups)
    throw Error("the pattern '{}' has more than {} groups", source, kMostGroups);
  const auto entries = state->known<uint32_t>(PCRE2_INFO_NAMECOUNT);
  const auto entry_bytes = state->known<uint32_t>(PCRE2_INFO_NAMEENTRYSIZE);
  const auto* table = state->known<PCRE2_SPTR>(PCRE2_INFO_NAMETABLE);
  for (uint32_t i = 0; i < entries; ++i, table += entry_bytes) {
    numbers_.push_back(uint32_t(table[0]) << 8 | table[1]);
    names_.emplace_back(reinterpret_cast<const char*>(table + 2));
  }
  looks_back_ = state->known<uint32_t>(PCRE2_INFO_MAXLOOKBEHIND);
  may_be_empty_ = state->known<uint32_t>(PCRE2_INFO_MATCHEMPTY) != 0;
  const auto* bitmap = state->known<const uint8_t*>(PCRE2_INFO_FIRSTBITMAP);
  const bool has_unit = state->known<uint32_t>(PCRE2_INFO_FIRSTCODETYPE) == 1;
  const auto unit = state->known<uint32_t>(PCRE2_INFO_FIRSTCODEUNIT);
  for (uint32_t byte = 0; byte < 256; ++byte) {
    // What is said of the first byte leaves out the case of letters.
    const bool fits_unit = byte >= 0x80 || (byte | 0x20) == ((unit & 0xFF) | 0x20);
    const bool fits_map = bitmap == nullptr || (bitmap[byte / 8] >> byte % 8 & 1) != 0;
    first_[byte] = may_be_empty_ || (has_unit ? fits_unit : fits_map);
  }
  state_ = std::move(state);
}

Pattern::Pattern(Pattern&&) noexcept = default;
Pattern& Pattern::operator=(Pattern&&) noexcept = default;
Pattern::~Pattern() = default;

void Pattern::set_groups(std::string_view text, Found& found) const {
  const size_t* ends = pcre2_get_ovector_pointer(pattern_scratch().data.get());
  found.begin = ends[0];
  found.end = ends[1];
  found.groups.clear();
  for (size_t i = 0; i < names_.size(); ++i) {
    const size_t begin = ends[2 * numbers_[i]], end = ends[2 * numbers_[i] + 1];
    if (begin == PCRE2_UNSET || end == PCRE2_UNSET || begin > end) continue;
    found.groups.emplace_back(names_[i], text.substr(begin, end - begin));
  }
}

Pattern::Match Pattern::match_at(std::string_view text, size_t at, bool last, Found& found) const {
  if (at == text.size() && !last) return Match::more;
  if (at < text.size() && !may_begin_with(text[at])) return Match::no;
  const int result =
      state_->match(text, at, PCRE2_ANCHORED | (last ? 0 : PCRE2_PARTIAL_HARD), kMostStepsHere);
  if (result == PCRE2_ERROR_PARTIAL) return Match::more;
  if (result == PCRE2_ERROR_NOMATCH) return Match::no;
  if (result < 0) return Match::too_much;
  set_groups(text, found);
  return found.begin == at && found.end >= at ? Match::yes : Match::no;
}

// The library counts steps at each place anew, and has no bound for all of them: so the places are gone through here.
bool Pattern::find(std::string_view text, size_t at, Found& found, Patience& patience) const {
  for (; at <= text.size(); at += at < text.size() ? utf8_length(text[at]) : 1) {
    if (at < text.size() && !may_begin_with(text[at])) continue;
    if (stands_at(text, at, found, patience)) return true;
  }
  return false;
}

bool Pattern::stands_at(std::string_view text, size_t at, Found& found, Patience& patience) const {
  size_t bytes = kFewBytes;
  const auto take = [&](uint64_t steps) {
    if (steps > patience.steps) throw Error("a pattern takes too long on a text of {} bytes", text.size());
    patience.steps -= steps;
  };
  for (uint64_t steps = kFewSteps;; steps *= kHarder, bytes *= kHarder) {
    if (steps > kFewSteps) take(steps);
    const bool cut = text.size() - at > bytes;
    size_t end = cut ? at + bytes : text.size();
    while (cut && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
    const int result = state_->match(text.substr(0, end), at, PCRE2_ANCHORED | (cut ? PCRE2_PARTIAL_HARD : 0),
                                     uint32_t(steps));
    if (result == PCRE2_ERROR_PARTIAL || result == PCRE2_ERROR_MATCHLIMIT) continue;
    if (result == PCRE2_ERROR_NOMATCH) {
      // A step may pass over many bytes, which nothing counts: who looked far for nothing may not do so often.
      if (steps > kFewSteps) take(steps * kForNothing);
      return false;
    }
    if (result < 0) throw Error("a pattern takes too much memory on a text of {} bytes", text.size());
    set_groups(text, found);
    if (found.begin < at || found.end < found.begin) throw Error("a pattern matches backwards");
    return true;
  }
}

}  // namespace quire
