#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace quire {

inline constexpr std::string_view kReplacementChar = "\xEF\xBF\xBD";  // U+FFFD

struct CodePoint {
  char32_t value = 0;
  uint32_t bytes = 0;
};

// The code point at `offset`. REQUIRES: `text` is valid UTF-8 and offset < text.size().
CodePoint code_point_at(std::string_view text, size_t offset);

// How many bytes the character that starts with `lead` has. REQUIRES: the first byte of valid UTF-8.
inline uint32_t utf8_length(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

void append_utf8(std::string& out, char32_t code_point);

// The first place where `text` is not valid UTF-8, from `offset` on; text.size() if there is none.
// `bad_bytes` is then the length of the maximal broken part there (Unicode 3.9, as most decoders count it),
// or 0 if the text ends inside a character that so far is well-formed.
struct BrokenUtf8 {
  size_t offset = 0;
  uint32_t bad_bytes = 0;
};
BrokenUtf8 find_broken_utf8(std::string_view text, size_t offset = 0);

bool is_valid_utf8(std::string_view text);

// Each maximal broken part becomes one U+FFFD.
std::string replace_broken_utf8(std::string_view text);

// Bytes that come in pieces, to text. What push() returns is always valid UTF-8.
class Utf8Stream {
 public:
  std::string push(std::string_view bytes);
  std::string finish();  // an unfinished character becomes U+FFFD

 private:
  std::string pending_;  // the start of a character: at most 3 bytes
};

}  // namespace quire
