#include "grammar/code_points.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

namespace quire::grammar {
namespace {

struct ByteRange8 {
  uint8_t first, last;
};

ExprId sequence_of(ExprPool& pool, std::span<const ByteRange8> ranges) {
  ExprId result = ExprPool::kEmpty;
  for (size_t i = ranges.size(); i-- > 0;)
    result = pool.concat(pool.bytes(ByteSet::of(ranges[i].first, ranges[i].last)), result);
  return result;
}

uint32_t utf8_bytes(uint32_t c, std::array<uint8_t, 4>& out) {
  if (c < 0x80) {
    out[0] = uint8_t(c);
    return 1;
  }
  const uint32_t count = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
  for (uint32_t i = count; i-- > 1; c >>= 6) out[i] = uint8_t(0x80 | (c & 0x3F));
  out[0] = uint8_t((count == 2 ? 0xC0 : count == 3 ? 0xE0 : 0xF0) | c);
  return count;
}

// Of characters whose encodings have the same length: split until first and last differ only in bytes that run through all.
void add_utf8(ExprPool& pool, uint32_t first, uint32_t last, std::vector<ExprId>& parts) {
  for (const uint32_t limit : {0x7Fu, 0x7FFu, 0xFFFFu}) {
    if (first <= limit && last > limit) {
      add_utf8(pool, first, limit, parts);
      add_utf8(pool, limit + 1, last, parts);
      return;
    }
  }
  if (last >= 0x80) {
    for (const uint32_t bits : {6u, 12u, 18u}) {
      const uint32_t low = (1u << bits) - 1;
      if ((first & ~low) == (last & ~low)) continue;
      if ((first & low) != 0) {
        add_utf8(pool, first, first | low, parts);
        add_utf8(pool, (first | low) + 1, last, parts);
        return;
      }
      if ((last & low) != low) {
        add_utf8(pool, first, (last & ~low) - 1, parts);
        add_utf8(pool, last & ~low, last, parts);
        return;
      }
    }
  }
  std::array<uint8_t, 4> from{}, to{};
  const uint32_t count = utf8_bytes(first, from);
  utf8_bytes(last, to);
  std::array<ByteRange8, 4> ranges{};
  for (uint32_t i = 0; i < count; ++i) ranges[i] = {from[i], to[i]};
  parts.push_back(sequence_of(pool, std::span(ranges).first(count)));
}

ExprId hex_digits(ExprPool& pool, std::string_view digits) {
  ByteSet set;
  for (char digit : digits) {
    set.add(uint8_t(digit));
    if (digit >= 'a') set.add(uint8_t(digit - 'a' + 'A'));
  }
  return pool.bytes(set);
}

struct ShortEscape {
  char character, letter;
};
constexpr ShortEscape kShortEscapes[] = {{'"', '"'},  {'\\', '\\'}, {'\b', 'b'}, {'\f', 'f'},
                                         {'\n', 'n'}, {'\r', 'r'},  {'\t', 't'}};

char letter_of(uint32_t c) {
  for (const ShortEscape& escape : kShortEscapes) {
    if (uint32_t(uint8_t(escape.character)) == c) return escape.letter;
  }
  return 0;
}

}  // namespace

void CodePoints::add(uint32_t first, uint32_t last) {
  last = std::min(last, kLast);
  if (first < 0xD800 && last > 0xDFFF) {
    add(first, 0xD7FF);
    add(0xE000, last);
    return;
  }
  if (first >= 0xD800 && first <= 0xDFFF) first = 0xE000;
  if (last >= 0xD800 && last <= 0xDFFF) last = 0xD7FF;
  if (first > last) return;
  ranges_.emplace_back(first, last);
  std::ranges::sort(ranges_);
  std::vector<std::pair<uint32_t, uint32_t>> merged;
  for (const auto& range : ranges_) {
    if (!merged.empty() && range.first <= merged.back().second + 1) {
      merged.back().second = std::max(merged.back().second, range.second);
    } else {
      merged.push_back(range);
    }
  }
  ranges_ = std::move(merged);
}

void CodePoints::add(const CodePoints& other) {
  for (const auto& [first, last] : other.ranges_) add(first, last);
}

CodePoints CodePoints::complement() const {
  CodePoints result;
  uint32_t next = 0;
  for (const auto& [first, last] : ranges_) {
    if (first > next) result.add(next, first - 1);
    next = last + 1;
  }
  if (next <= kLast) result.add(next, kLast);
  return result;
}

CodePoints CodePoints::without(const CodePoints& other) const {
  CodePoints both = complement();
  both.add(other);
  return both.complement();
}

ExprId utf8_of(ExprPool& pool, const CodePoints& set) {
  std::vector<ExprId> parts;
  for (const auto& [first, last] : set.ranges()) add_utf8(pool, first, last, parts);
  return pool.any_of(std::move(parts));
}

ExprId json_of(ExprPool& pool, const CodePoints& set) {
  CodePoints escaped(0, 0x1F);
  escaped.add('"', '"');
  escaped.add('\\', '\\');
  std::vector<ExprId> parts{utf8_of(pool, set.without(escaped))};
  const CodePoints escapes = set.without(escaped.complement());
  for (const auto& [first, last] : escapes.ranges()) {
    for (uint32_t c = first; c <= last; ++c) {
      if (const char letter = letter_of(c)) {
        parts.push_back(pool.literal(std::string{'\\', letter}));
        continue;
      }
      parts.push_back(pool.literal(fmt::format("\\u{:04x}", c)));
    }
  }
  return pool.any_of(std::move(parts));
}

ExprId json_char(ExprPool& pool, JsonSpelling spelling) {
  const ExprId one = json_of(pool, CodePoints::all());
  if (spelling == JsonSpelling::one) return one;
  const ExprId any = hex_digits(pool, "0123456789abcdef"), start = pool.literal("\\u");
  const ExprId plain[] = {start, hex_digits(pool, "0123456789abcef"), any, any, any};
  const ExprId below[] = {start, hex_digits(pool, "d"), hex_digits(pool, "01234567"), any, any};
  const ExprId pair[] = {start, hex_digits(pool, "d"), hex_digits(pool, "89ab"), any, any,
                         start, hex_digits(pool, "d"), hex_digits(pool, "cdef"), any, any};
  return pool.any_of({one, pool.literal("\\/"), pool.concat(plain), pool.concat(below), pool.concat(pair)});
}

std::string json_text(std::string_view text) {
  std::string result = "\"";
  for (char c : text) {
    if (const char letter = letter_of(uint8_t(c))) {
      result += '\\';
      result += letter;
    } else if (uint8_t(c) < 0x20) {
      result += fmt::format("\\u{:04x}", uint8_t(c));
    } else {
      result += c;
    }
  }
  return result + '"';
}

}  // namespace quire::grammar
