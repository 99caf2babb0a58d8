#pragma once

#include <string>
#include <string_view>

// Properties of characters, as the tokenizers of this world define them. Unicode 15 (utf8proc).
namespace quire {

bool is_white_space(char32_t c);      // the White_Space property
bool is_numeric(char32_t c);          // general category N
bool is_punctuation(char32_t c);      // general category P
bool is_mark(char32_t c);             // general category M
bool is_nonspacing_mark(char32_t c);  // general category Mn
bool is_other(char32_t c);            // general categories Cc, Cf, Co
bool is_word_char(char32_t c);        // Alphabetic, M, Nd, Pc, Join_Control
bool is_han(char32_t c);              // BERT's idea of a Chinese character
void append_lowercase(std::string& out, char32_t c);

inline bool is_ascii_punctuation(char32_t c) {
  return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') || (c >= '{' && c <= '~');
}

}  // namespace quire
