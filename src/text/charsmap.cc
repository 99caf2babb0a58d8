#include "text/charsmap.h"

#include <utf8proc.h>

#include "base/error.h"
#include "text/utf8.h"

namespace quire {
namespace {

constexpr size_t kMaxGraphemeBytes = 5;  // longer ones are mapped character by character

uint32_t read_u32(std::string_view bytes, size_t at) {
  const auto byte = [&](size_t i) { return uint32_t(static_cast<unsigned char>(bytes[at + i])); };
  return byte(0) | byte(1) << 8 | byte(2) << 16 | byte(3) << 24;
}

// A unit of the double array.
bool has_leaf(uint32_t unit) {
  return (unit >> 8 & 1) != 0;
}
uint32_t label(uint32_t unit) {
  return unit & (1u << 31 | 0xFF);
}
uint32_t offset(uint32_t unit) {
  return unit >> 10 << ((unit & 1u << 9) >> 6);
}
uint32_t value(uint32_t unit) {
  return unit & ((1u << 31) - 1);
}

}  // namespace

CompiledCharsmap::CompiledCharsmap(const Charsmap& map) : match_(map.match) {
  const std::string_view bytes = map.bytes;
  if (bytes.empty()) return;
  if (bytes.size() < 4) throw Error("the tokenizer's precompiled character map is cut short");
  const uint32_t trie_bytes = read_u32(bytes, 0);
  if (trie_bytes % 4 != 0 || trie_bytes > bytes.size() - 4) {
    throw Error("the tokenizer's precompiled character map says its trie has {} bytes, of {} in all",
                trie_bytes, bytes.size());
  }
  units_.resize(trie_bytes / 4);
  for (size_t i = 0; i < units_.size(); ++i) units_[i] = read_u32(bytes, 4 + i * 4);
  texts_ = bytes.substr(4 + trie_bytes);
}

template <class Visit>
void CompiledCharsmap::prefixes(std::string_view text, Visit&& visit) const {
  if (units_.empty()) return;
  size_t node = offset(units_[0]);
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte == 0) return;
    node ^= byte;
    if (node >= units_.size() || label(units_[node]) != byte) return;
    const uint32_t unit = units_[node];
    node ^= offset(unit);
    if (has_leaf(unit) && node < units_.size() && !visit(i + 1, value(units_[node]))) return;
  }
}

std::optional<std::string_view> CompiledCharsmap::text_at(uint32_t offset) const {
  if (offset >= texts_.size()) return std::nullopt;
  const std::string_view rest = std::string_view(texts_).substr(offset);
  const std::string_view text = rest.substr(0, rest.find('\0'));
  return is_valid_utf8(text) ? std::optional(text) : std::nullopt;
}

std::optional<CompiledCharsmap::Found> CompiledCharsmap::shortest(std::string_view text) const {
  std::optional<Found> found;
  prefixes(text, [&](size_t bytes, uint32_t offset) {
    if (const auto mapped = text_at(offset)) found = Found{bytes, *mapped};
    return false;
  });
  return found;
}

std::optional<CompiledCharsmap::Found> CompiledCharsmap::longest(std::string_view text) const {
  size_t best_bytes = 0;
  uint32_t best_offset = 0;
  prefixes(text, [&](size_t bytes, uint32_t offset) {
    const bool whole =
        bytes == text.size() || (text[bytes] & 0xC0) != 0x80;  // a broken map may cut a character
    if (whole) {
      best_bytes = bytes;
      best_offset = offset;
    }
    return true;
  });
  if (best_bytes == 0) return std::nullopt;
  const auto mapped = text_at(best_offset);
  return mapped ? std::optional(Found{best_bytes, *mapped}) : std::nullopt;
}

void CompiledCharsmap::apply_to_grapheme(std::string_view grapheme, std::string& out) const {
  if (grapheme.size() <= kMaxGraphemeBytes) {
    // A match of the grapheme's start stands for all of it: this is what the models were trained with.
    if (const auto found = shortest(grapheme)) {
      out += found->text;
      return;
    }
  }
  for (size_t i = 0; i < grapheme.size();) {
    const std::string_view one = grapheme.substr(i, utf8_length(grapheme[i]));
    const auto found = shortest(one);
    out += found ? found->text : one;
    i += one.size();
  }
}

std::string CompiledCharsmap::apply(std::string_view text) const {
  std::string out;
  out.reserve(text.size());
  if (match_ == Charsmap::Match::longest) {
    for (size_t at = 0; at < text.size();) {
      const auto found = longest(text.substr(at));
      const size_t bytes = found ? found->bytes : utf8_length(text[at]);
      out += found ? found->text : text.substr(at, bytes);
      at += bytes;
    }
    return out;
  }
  size_t begin = 0;
  utf8proc_int32_t state = 0;
  for (size_t at = 0; at < text.size();) {
    const CodePoint here = code_point_at(text, at);
    at += here.bytes;
    if (at < text.size() &&
        !utf8proc_grapheme_break_stateful(utf8proc_int32_t(here.value),
                                          utf8proc_int32_t(code_point_at(text, at).value), &state)) {
      continue;
    }
    apply_to_grapheme(text.substr(begin, at - begin), out);
    begin = at;
  }
  return out;
}

}  // namespace quire
