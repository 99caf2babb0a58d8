#include "grammar/text_cursor.h"

#include <algorithm>

namespace quire::grammar {
namespace {

// The length of the character that `text` begins with, in UTF-8; 0 if none does.
uint32_t character_bytes(std::string_view text, uint32_t& value) {
  const auto byte = [&](size_t i) { return i < text.size() ? uint8_t(text[i]) : 0u; };
  const uint32_t lead = byte(0);
  const uint32_t count = lead < 0x80   ? 1
                         : lead < 0xC2 ? 0
                         : lead < 0xE0 ? 2
                         : lead < 0xF0 ? 3
                         : lead < 0xF5 ? 4
                                       : 0;
  value = count <= 1 ? lead : lead & (0x7Fu >> count);
  for (uint32_t i = 1; i < count; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
    value = value << 6 | (byte(i) & 0x3F);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  if (count > 1 && (value < kLeast[count] || value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)))
    return 0;
  return count;
}

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

TextCursor::TextCursor(std::string_view text) : text_(text) {
  uint32_t value = 0;
  for (size_t at = 0; at < text.size();) {
    const uint32_t bytes = character_bytes(text.substr(at), value);
    if (bytes == 0) throw Error("a grammar or pattern is not valid UTF-8, from byte {} on", at);
    at += bytes;
  }
}

size_t TextCursor::line() const {
  return 1 + size_t(std::count(text_.begin(), text_.begin() + ptrdiff_t(at_), '\n'));
}

bool TextCursor::take(char c) {
  if (!peek_is(c)) return false;
  ++at_;
  return true;
}

bool TextCursor::take(std::string_view words) {
  if (!starts_with(words)) return false;
  at_ += words.size();
  return true;
}

uint32_t TextCursor::take_character() {
  if (done()) return 0;
  uint32_t value = 0;
  at_ += character_bytes(text_.substr(at_), value);
  return value;
}

std::optional<uint32_t> TextCursor::take_number(uint32_t most) {
  uint64_t value = 0;
  const size_t begin = at_;
  for (; !done() && peek() >= '0' && peek() <= '9'; ++at_) {
    value = value * 10 + uint64_t(peek() - '0');
    if (value > most) {
      at_ = begin;
      return std::nullopt;
    }
  }
  return at_ == begin ? std::nullopt : std::optional(uint32_t(value));
}

std::optional<uint32_t> TextCursor::take_hex(int digits) {
  uint32_t value = 0;
  for (int i = 0; i < digits; ++i, ++at_) {
    const int digit = done() ? -1 : hex_value(peek());
    if (digit < 0) return std::nullopt;
    value = value << 4 | uint32_t(digit);
  }
  return value;
}

std::optional<uint32_t> TextCursor::take_hex_up_to(int digits) {
  int count = 0;
  while (count < digits && at_ + size_t(count) < text_.size() && hex_value(text_[at_ + size_t(count)]) >= 0)
    ++count;
  return count == 0 ? std::nullopt : take_hex(count);
}

}  // namespace quire::grammar
