#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace quire::jinja {

enum class TokenKind : uint8_t {
  data,
  variable_begin,
  variable_end,
  block_begin,
  block_end,
  name,
  string,
  integer,
  real,
  op,
  end,
};

struct Token {
  TokenKind kind = TokenKind::end;
  uint32_t line = 1;
  std::string text;  // data and strings as they mean, not as they are spelled
};

// Splits a template into tokens, as Jinja does with trim_blocks and lstrip_blocks on: comments are gone, raw
// blocks have become data, whitespace is already trimmed. Throws Error, naming the line.
std::vector<Token> tokenize(std::string_view source);

}  // namespace quire::jinja
