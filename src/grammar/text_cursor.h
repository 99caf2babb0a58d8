#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/error.h"

namespace quire::grammar {

// A place in a text that is being read: of valid UTF-8, which it makes sure of. It refers to the text.
class TextCursor {
 public:
  explicit TextCursor(std::string_view text);

  std::string_view text() const { return text_; }
  size_t offset() const { return at_; }
  void back_to(size_t offset) { at_ = offset; }
  size_t line() const;  // the first is 1

  bool done() const { return at_ == text_.size(); }
  char peek() const { return done() ? '\0' : text_[at_]; }
  bool peek_is(char c) const { return !done() && text_[at_] == c; }
  bool starts_with(std::string_view words) const { return text_.substr(at_).starts_with(words); }
  // Goes past it, if it stands here.
  bool take(char c);
  bool take(std::string_view words);
  // Of a done text: 0.
  uint32_t take_character();
  // Nothing, if none stands here or it is larger.
  std::optional<uint32_t> take_number(uint32_t most);
  std::optional<uint32_t> take_hex(int digits);
  std::optional<uint32_t> take_hex_up_to(int digits);

 private:
  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace quire::grammar
