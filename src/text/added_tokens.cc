#include "text/added_tokens.h"

#include <algorithm>

#include "base/error.h"
#include "text/unicode.h"
#include "text/utf8.h"

namespace quire {
namespace {

constexpr size_t kMaxTokenBytes = 1024;

size_t previous_char(std::string_view text, size_t at) {
  do --at;
  while (at > 0 && (text[at] & 0xC0) == 0x80);
  return at;
}

bool touches(std::span<const ByteRange> ranges, size_t begin, size_t end) {
  const auto next = std::partition_point(ranges.begin(), ranges.end(),
                                         [&](const ByteRange& range) { return range.end <= begin; });
  return next != ranges.end() && next->begin < end;
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(std::vector<AddedToken> tokens, AddedTokenOrder order)
    : tokens_(std::move(tokens)), order_(order) {
  std::vector<std::pair<std::string_view, uint32_t>> entries;
  for (uint32_t i = 0; i < tokens_.size(); ++i) {
    const AddedToken& token = tokens_[i];
    if (token.text.size() > kMaxTokenBytes) {
      throw Error("the added token {} has {} bytes; at most {} are allowed", token.id, token.text.size(),
                  kMaxTokenBytes);
    }
    has_special_ |= token.special;
    entries.emplace_back(token.text, i);
  }
  finder_ = StartFinder(entries);
}

std::vector<AddedTokenFinder::Place> AddedTokenFinder::leftmost(std::string_view text) const {
  std::vector<Place> places;
  size_t done = 0;
  for (const StartFinder::Start& start : finder_.find(text)) {
    if (start.at < done) continue;
    finder_.each(start, [&](size_t bytes, uint32_t index) {
      places.push_back({start.at, bytes, index, start});
      return true;
    });
    done = start.at + places.back().bytes;
  }
  return places;
}

template <class Allowed>
std::vector<AddedTokenFinder::Place> AddedTokenFinder::longest_first(std::string_view text,
                                                                     Allowed&& allowed) const {
  std::vector<Place> open;  // for each place still free, the longest token that fits there
  const auto longest_at = [&](const StartFinder::Start& start, size_t most) {
    Place longest;
    finder_.each(start, [&](size_t bytes, uint32_t index) {
      const Place place{start.at, bytes, index, start};
      if (bytes > most || !allowed(place)) return false;
      longest = place;
      return true;
    });
    return longest;
  };
  for (const StartFinder::Start& start : finder_.find(text)) {
    const Place place = longest_at(start, text.size());
    if (place.bytes > 0) open.push_back(place);
  }
  std::vector<Place> taken;
  while (!open.empty()) {
    size_t longest = 0;
    for (const Place& place : open) longest = std::max(longest, place.bytes);
    std::vector<Place> added;
    size_t free_from = 0;
    for (const Place& place : open) {
      if (place.bytes != longest || place.begin < free_from) continue;
      added.push_back(place);
      free_from = place.begin + place.bytes;
    }
    std::vector<Place> rest;
    size_t next = 0;
    for (const Place& place : open) {
      while (next < added.size() && added[next].begin + added[next].bytes <= place.begin) ++next;
      const bool inside = next < added.size() && added[next].begin <= place.begin;
      if (inside) continue;
      const size_t room = next < added.size() ? added[next].begin - place.begin : text.size() - place.begin;
      const Place shorter = place.bytes <= room ? place : longest_at(place.start, room);
      if (shorter.bytes > 0) rest.push_back(shorter);
    }
    taken.insert(taken.end(), added.begin(), added.end());
    open = std::move(rest);
  }
  std::sort(taken.begin(), taken.end(), [](const Place& a, const Place& b) { return a.begin < b.begin; });
  return taken;
}

bool AddedTokenFinder::stands_alone(std::string_view text, const Place& place) const {
  const size_t end = place.begin + place.bytes;
  if (place.begin > 0 && is_word_char(code_point_at(text, previous_char(text, place.begin)).value))
    return false;
  return end == text.size() || !is_word_char(code_point_at(text, end).value);
}

std::vector<AddedTokenMatch> AddedTokenFinder::find(std::string_view text, bool parse_special,
                                                    std::span<const ByteRange> plain) const {
  if (finder_.empty()) return {};
  const auto allowed = [&](const Place& place) {
    if (!tokens_[place.index].special) return true;
    return parse_special && !touches(plain, place.begin, place.begin + place.bytes);
  };
  const std::vector<Place> places =
      order_ == AddedTokenOrder::leftmost ? leftmost(text) : longest_first(text, allowed);
  std::vector<AddedTokenMatch> matches;
  size_t done = 0;
  for (const Place& place : places) {
    const AddedToken& token = tokens_[place.index];
    if (!allowed(place) || (token.single_word && !stands_alone(text, place))) continue;
    size_t begin = place.begin;
    size_t end = begin + place.bytes;
    while (token.strip_left && begin > done) {
      const size_t before = previous_char(text, begin);
      if (before < done || !is_white_space(code_point_at(text, before).value)) break;
      begin = before;
    }
    while (token.strip_right && end < text.size()) {
      const CodePoint c = code_point_at(text, end);
      if (!is_white_space(c.value)) break;
      end += c.bytes;
    }
    matches.push_back({{begin, end}, token.id});
    done = end;
  }
  return matches;
}

}  // namespace quire
