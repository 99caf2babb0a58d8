#include "text/jinja/lexer.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "text/jinja/text.h"

namespace quire::jinja {
namespace {

// Every line break becomes \n, and the last one goes, as Jinja does by default.
std::string normalize_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out += source[i];
    }
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

bool is_ascii_space(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

bool is_name_byte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) || c == '_' || (c & 0x80) != 0;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(normalize_newlines(source)) {}

  std::vector<Token> run() {
    while (position_ < source_.size()) read_data();
    push(TokenKind::end, {});
    return std::move(tokens_);
  }

 private:
  bool at(std::string_view wanted) const {
    return std::string_view(source_).substr(position_).starts_with(wanted);
  }

  char peek(size_t ahead = 0) const {
    return position_ + ahead < source_.size() ? source_[position_ + ahead] : '\0';
  }

  void advance(size_t count) {
    const size_t end = std::min(position_ + count, source_.size());
    line_ +=
        uint32_t(std::count(source_.begin() + ptrdiff_t(position_), source_.begin() + ptrdiff_t(end), '\n'));
    position_ = end;
  }

  void skip_space() {
    size_t count = 0;
    while (position_ + count < source_.size() && is_ascii_space(source_[position_ + count])) ++count;
    advance(count);
  }

  void push(TokenKind kind, std::string text) { tokens_.push_back({kind, line_, std::move(text)}); }

  [[noreturn]] void fail(std::string_view what) const {
    throw Error("chat template, line {}: {}", line_, what);
  }

  // Text up to the next tag, then the tag.
  void read_data() {
    size_t tag = position_;
    for (;; ++tag) {
      tag = source_.find('{', tag);
      if (tag == std::string::npos || tag + 1 >= source_.size()) {
        tag = source_.size();
        break;
      }
      const char next = source_[tag + 1];
      if (next == '{' || next == '%' || next == '#') break;
    }
    std::string_view data = std::string_view(source_).substr(position_, tag - position_);
    const uint32_t data_line = line_;
    if (tag < source_.size())
      data = trim_before(data, source_[tag + 1], tag + 2 < source_.size() ? source_[tag + 2] : '\0');
    if (!data.empty()) tokens_.push_back({TokenKind::data, data_line, std::string(data)});
    advance(tag - position_);
    if (position_ < source_.size()) read_tag();
  }

  std::string_view trim_before(std::string_view data, char kind, char sign) const {
    if (sign == '-') {
      while (!data.empty() && is_ascii_space(data.back())) data.remove_suffix(1);
    } else if (sign != '+' && kind != '{') {
      // lstrip_blocks: a tag alone at the beginning of its line takes the spaces before it along.
      const size_t line_start = data.rfind('\n') + 1;
      const bool starts_line = line_start > 0 || after_newline_;
      const std::string_view indent = data.substr(line_start);
      if (starts_line && std::all_of(indent.begin(), indent.end(), is_ascii_space)) {
        data = data.substr(0, line_start);
      }
    }
    return data;
  }

  void read_tag() {
    const char kind = source_[position_ + 1];
    if (kind == '#') return read_comment();
    if (kind == '%' && read_raw()) return;
    push(kind == '{' ? TokenKind::variable_begin : TokenKind::block_begin, {});
    advance(2);
    if (peek() == '-' || peek() == '+') advance(1);
    read_code(kind == '{' ? "}}" : "%}");
  }

  // After a block or a comment one newline goes too, unless a sign says otherwise.
  void close_tag(char sign) {
    after_newline_ = false;
    if (sign == '-') {
      const size_t begin = position_;
      skip_space();
      after_newline_ = position_ > begin && source_[position_ - 1] == '\n';
    } else if (sign != '+' && peek() == '\n') {
      advance(1);
      after_newline_ = true;
    }
  }

  void read_comment() {
    const size_t begin = position_ + (peek(2) == '-' || peek(2) == '+' ? 3 : 2);
    const size_t end = source_.find("#}", begin);
    if (end == std::string::npos) fail("a comment has no end");
    const char sign = end > begin ? source_[end - 1] : '\0';
    advance(end + 2 - position_);
    close_tag(sign);
  }

  // {% raw %} ... {% endraw %}, whose inside is data.
  bool read_raw() {
    size_t i = match_keyword_tag(position_, "raw");
    if (i == 0) return false;
    const bool trim_start = source_[i - 3] == '-';
    advance(i - position_);
    if (trim_start) skip_space();
    for (size_t tag = position_;; tag += 2) {
      tag = source_.find("{%", tag);
      if (tag == std::string::npos) fail("a raw block has no endraw");
      const size_t end = match_keyword_tag(tag, "endraw");
      if (end == 0) continue;
      after_newline_ = false;
      const std::string_view data =
          trim_before(std::string_view(source_).substr(position_, tag - position_), '%', source_[tag + 2]);
      if (!data.empty()) push(TokenKind::data, std::string(data));
      const char sign = source_[end - 3];
      advance(end - position_);
      close_tag(sign);
      return true;
    }
  }

  // Where the tag `{% word %}` that begins at `begin` ends; 0 if there is another tag.
  size_t match_keyword_tag(size_t begin, std::string_view word) const {
    const std::string_view all = source_;
    size_t i = begin + 2;
    if (i < all.size() && (all[i] == '-' || all[i] == '+')) ++i;
    while (i < all.size() && is_ascii_space(all[i])) ++i;
    if (!all.substr(i).starts_with(word)) return 0;
    i += word.size();
    while (i < all.size() && is_ascii_space(all[i])) ++i;
    if (i < all.size() && (all[i] == '-' || all[i] == '+')) ++i;
    return all.substr(i).starts_with("%}") ? i + 2 : 0;
  }

  void read_code(std::string_view end) {
    brackets_.clear();
    while (true) {
      skip_space();
      if (position_ >= source_.size()) fail("a tag has no end");
      if (brackets_.empty() && read_end(end)) return;
      read_token();
    }
  }

  bool read_end(std::string_view end) {
    const bool block = end == "%}";
    const bool signed_end = (peek() == '-' || (block && peek() == '+')) &&
                            std::string_view(source_).substr(position_ + 1).starts_with(end);
    if (!signed_end && !at(end)) return false;
    const char sign = signed_end ? peek() : '\0';
    push(block ? TokenKind::block_end : TokenKind::variable_end, {});
    advance(signed_end ? 3 : 2);
    if (block || sign == '-') {
      close_tag(sign);
    } else {
      after_newline_ = false;
    }
    return true;
  }

  void read_token() {
    const char c = peek();
    if (is_digit(c)) return read_number();
    if (is_name_byte(c)) return read_name();
    if (c == '"' || c == '\'') return read_string(c);
    read_operator();
  }

  void read_name() {
    size_t length = 0;
    while (is_name_byte(peek(length))) ++length;
    push(TokenKind::name, source_.substr(position_, length));
    advance(length);
  }

  void read_number() {
    size_t length = 0;
    bool real = false;
    const auto digits = [&] {
      while (is_digit(peek(length)) || (peek(length) == '_' && is_digit(peek(length + 1)))) ++length;
    };
    const char radix = char(peek(1) | 0x20);
    if (peek() == '0' && (radix == 'x' || radix == 'o' || radix == 'b')) {
      length = 2;
      while (is_name_byte(peek(length))) ++length;
    } else {
      digits();
      if (peek(length) == '.' && is_digit(peek(length + 1))) {
        real = true;
        ++length;
        digits();
      }
      const size_t sign = peek(length + 1) == '+' || peek(length + 1) == '-' ? 1 : 0;
      if ((peek(length) | 0x20) == 'e' && is_digit(peek(length + 1 + sign))) {
        real = true;
        length += 1 + sign;
        digits();
      }
    }
    std::string text = source_.substr(position_, length);
    std::erase(text, '_');
    push(real ? TokenKind::real : TokenKind::integer, std::move(text));
    advance(length);
  }

  void read_string(char quote) {
    size_t length = 1;
    while (peek(length) != quote) {
      if (position_ + length >= source_.size()) fail("a string has no end");
      length += peek(length) == '\\' ? 2 : 1;
    }
    push(TokenKind::string, unescape(std::string_view(source_).substr(position_ + 1, length - 1)));
    advance(length + 1);
  }

  // Python's escapes; a backslash before anything else stands for itself.
  std::string unescape(std::string_view spelled) const {
    std::string out;
    for (size_t i = 0; i < spelled.size(); ++i) {
      if (spelled[i] != '\\' || i + 1 == spelled.size()) {
        out += spelled[i];
        continue;
      }
      const char c = spelled[++i];
      constexpr std::string_view kLetters = "abfnrtv\\'\"";
      constexpr std::string_view kMeanings = "\a\b\f\n\r\t\v\\'\"";
      if (const size_t place = kLetters.find(c); place != std::string_view::npos) {
        out += kMeanings[place];
      } else if (c == '\n') {
        continue;  // a line continued
      } else if (c == 'x' || c == 'u' || c == 'U') {
        const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        append_code_point(out, spelled.substr(i + 1, digits), digits, 16);
        i += digits;
      } else if (c >= '0' && c <= '7') {
        size_t digits = 1;
        while (digits < 3 && i + digits < spelled.size() && spelled[i + digits] >= '0' &&
               spelled[i + digits] <= '7') {
          ++digits;
        }
        append_code_point(out, spelled.substr(i, digits), digits, 8);
        i += digits - 1;
      } else {
        out += '\\';
        out += c;
      }
    }
    return out;
  }

  void append_code_point(std::string& out, std::string_view spelled, size_t digits, uint32_t base) const {
    uint64_t character = 0;
    if (spelled.size() < digits) fail("an escape in a string is cut short");
    for (const char c : spelled) {
      const char lower = char(c | 0x20);
      const uint32_t digit = is_digit(c)                    ? uint32_t(c - '0')
                             : lower >= 'a' && lower <= 'f' ? uint32_t(lower - 'a' + 10)
                                                            : 99;
      if (digit >= base) fail("an escape in a string is not a number");
      character = character * base + digit;
    }
    if (character > 0x10FFFF || (character >= 0xD800 && character < 0xE000))
      fail("an escape in a string names no character");
    append_utf8(out, char32_t(character));
  }

  void read_operator() {
    static constexpr std::array<std::string_view, 28> kOperators = {
        "//", "**", "==", "!=", "<=", ">=", "+", "-", "/", "*", "%", "~", "[", "]",
        "(",  ")",  "{",  "}",  ">",  "<",  "=", ".", ":", "|", ",", ";", "!", ""};
    const auto found =
        std::find_if(kOperators.begin(), kOperators.end(), [&](std::string_view op) { return at(op); });
    const std::string_view op = *found;
    if (op.empty() || op == "!")
      fail(fmt::format("unexpected character '{}'",
                       source_.substr(position_, char_bytes(source_, position_))));
    if (op == "(" || op == "[" || op == "{") {
      brackets_ += op == "(" ? ')' : op == "[" ? ']' : '}';
    } else if (op == ")" || op == "]" || op == "}") {
      if (brackets_.empty() || brackets_.back() != op[0]) fail(fmt::format("unexpected '{}'", op));
      brackets_.pop_back();
    }
    push(TokenKind::op, std::string(op));
    advance(op.size());
  }

  const std::string source_;
  size_t position_ = 0;
  uint32_t line_ = 1;
  bool after_newline_ = true;  // the data that follows begins a line
  std::string brackets_;       // the closing ones still expected
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) {
  return Lexer(source).run();
}

}  // namespace quire::jinja
