#include "chat/loose_value.h"

#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include "text/utf8.h"

namespace quire {
namespace {

constexpr uint32_t kMostLevels = 64;

bool ends_word(char c) {
  return c == ',' || c == ')' || c == ']' || c == '}' || c == '\n';
}

}  // namespace

void LooseReader::skip_space() {
  while (at_ < text_.size() && is_blank(text_[at_])) ++at_;
}

bool LooseReader::take(std::string_view word) {
  if (!text_.substr(at_).starts_with(word)) return false;
  at_ += word.size();
  return true;
}

// The next character that is no space.
Match LooseReader::next(char& c) {
  skip_space();
  if (at_ == text_.size()) return Match::more;
  c = text_[at_];
  return Match::yes;
}

Match LooseReader::string(std::string& out) {
  if (!quote_.empty()) {
    const std::string_view rest = text_.substr(at_);
    if (rest.size() < quote_.size() && quote_.starts_with(rest)) return Match::more;
    if (take(quote_)) {
      const size_t end = text_.find(quote_, at_);
      if (end == std::string_view::npos) return Match::more;
      out = text_.substr(at_, end - at_);
      at_ = end + quote_.size();
      return Match::yes;
    }
  }
  const char quote = at_ < text_.size() ? text_[at_] : '\0';
  return quote == '"' || quote == '\'' ? quoted(quote, out) : Match::no;
}

Match LooseReader::quoted(char quote, std::string& out) {
  for (++at_; at_ < text_.size(); ++at_) {
    const char c = text_[at_];
    if (c == quote) {
      ++at_;
      return Match::yes;
    }
    if (c != '\\') {
      out += c;
      continue;
    }
    if (++at_ == text_.size()) return Match::more;
    const char escaped = text_[at_];
    static constexpr std::string_view kNames = "nrtbf0", kCodes{"\n\r\t\b\f\0", 6};
    const size_t digits = escaped == 'u' ? 4 : escaped == 'x' ? 2 : escaped == 'U' ? 8 : 0;
    if (digits > 0) {
      if (at_ + digits >= text_.size()) return Match::more;
      uint32_t code = 0;
      const char* begin = text_.data() + at_ + 1;
      const auto [end, problem] = std::from_chars(begin, begin + digits, code, 16);
      if (problem != std::errc() || end != begin + digits || code > 0x10FFFF) return Match::no;
      append_utf8(out, code >= 0xD800 && code < 0xE000 ? 0xFFFD : char32_t(code));
      at_ += digits;
    } else if (const size_t known = kNames.find(escaped); known != std::string_view::npos) {
      out += kCodes[known];
    } else if (escaped == '\\' || escaped == '\'' || escaped == '"' || escaped == '/') {
      out += escaped;
    } else if (escaped != '\n') {
      out += '\\';
      out += escaped;
    }
  }
  return Match::more;
}

Match LooseReader::word(OrderedJson& value) {
  const size_t begin = at_;
  while (at_ < text_.size() && !ends_word(text_[at_])) ++at_;
  if (at_ == text_.size()) return Match::more;
  size_t end = at_;
  while (end > begin && is_blank(text_[end - 1])) --end;
  const std::string_view word = text_.substr(begin, end - begin);
  if (word.empty()) return Match::no;
  static const std::array<std::pair<std::string_view, OrderedJson>, 6> kWords = {{{"true", true},
                                                                                  {"True", true},
                                                                                  {"false", false},
                                                                                  {"False", false},
                                                                                  {"null", OrderedJson()},
                                                                                  {"None", OrderedJson()}}};
  for (const auto& [name, meaning] : kWords) {
    if (word == name) {
      value = meaning;
      return Match::yes;
    }
  }
  int64_t whole = 0;
  double real = 0;
  const char *first = word.data(), *last = word.data() + word.size();
  if (const auto [at, problem] = std::from_chars(first, last, whole); problem == std::errc() && at == last) {
    value = whole;
  } else if (const auto [end_of, wrong] = std::from_chars(first, last, real);
             wrong == std::errc() && end_of == last && std::isfinite(real)) {
    value = real;
  } else {
    value = std::string(word);
  }
  return Match::yes;
}

Match LooseReader::list(OrderedJson& value, char close, uint32_t depth) {
  value = OrderedJson::array();
  ++at_;
  while (true) {
    char c = 0;
    if (next(c) == Match::more) return Match::more;
    if (c == close) {
      ++at_;
      return Match::yes;
    }
    OrderedJson item;
    if (const Match match = this->value(item, depth + 1); match != Match::yes) return match;
    value.push_back(std::move(item));
    if (next(c) == Match::more) return Match::more;
    if (c == ',') {
      ++at_;
    } else if (c != close) {
      return Match::no;
    }
  }
}

Match LooseReader::key(std::string& out, char after) {
  char c = 0;
  if (next(c) == Match::more) return Match::more;
  if (const Match match = string(out); match != Match::no) {
    if (match == Match::more) return match;
  } else {
    const size_t begin = at_;
    while (at_ < text_.size() && text_[at_] != after && !is_blank(text_[at_]) && !ends_word(text_[at_]))
      ++at_;
    out = text_.substr(begin, at_ - begin);
    if (at_ < text_.size() && out.empty()) return Match::no;
  }
  if (next(c) == Match::more) return Match::more;
  if (c != after) return Match::no;
  ++at_;
  return Match::yes;
}

Match LooseReader::object(OrderedJson& value, uint32_t depth) {
  value = OrderedJson::object();
  ++at_;
  while (true) {
    char c = 0;
    if (next(c) == Match::more) return Match::more;
    if (c == '}') {
      ++at_;
      return Match::yes;
    }
    if (value.size() > 1000) return Match::no;  // its members are a list
    std::string name;
    if (const Match match = key(name, ':'); match != Match::yes) return match;
    OrderedJson member;
    if (const Match match = this->value(member, depth + 1); match != Match::yes) return match;
    value[name] = std::move(member);
    if (next(c) == Match::more) return Match::more;
    if (c == ',') {
      ++at_;
    } else if (c != '}') {
      return Match::no;
    }
  }
}

Match LooseReader::value(OrderedJson& value, uint32_t depth) {
  if (depth > kMostLevels) return Match::no;
  char c = 0;
  if (next(c) == Match::more) return Match::more;
  if (c == '{') return object(value, depth);
  if (c == '[') return list(value, ']', depth);
  if (c == '(') return list(value, ')', depth);
  std::string text;
  const Match match = string(text);
  if (match == Match::no) return word(value);
  value = replace_broken_utf8(text);
  return match;
}

Match LooseReader::arguments(OrderedJson& object) {
  object = OrderedJson::object();
  ++at_;
  while (true) {
    char c = 0;
    if (next(c) == Match::more) return Match::more;
    if (c == ')') {
      ++at_;
      return Match::yes;
    }
    if (object.size() > 1000) return Match::no;
    std::string name;
    if (const Match match = key(name, '='); match != Match::yes) return match;
    OrderedJson member;
    if (const Match match = value(member, 1); match != Match::yes) return match;
    object[name] = std::move(member);
    if (next(c) == Match::more) return Match::more;
    if (c == ',') {
      ++at_;
    } else if (c != ')') {
      return Match::no;
    }
  }
}

std::optional<OrderedJson> python_value(std::string_view text) {
  const std::string closed = std::string(text) + "\n";  // ends a word
  LooseReader reader(closed, 0);
  OrderedJson value;
  if (reader.value(value) != Match::yes) return std::nullopt;
  for (size_t i = reader.at(); i < closed.size(); ++i) {
    if (!is_blank(closed[i])) return std::nullopt;
  }
  return value;
}

Match json_extent(std::string_view text, size_t at, size_t& end) {
  size_t depth = 0;
  bool in_string = false;
  for (size_t i = at; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
      continue;
    }
    if (c == '"') in_string = true;
    if (c == '{' || c == '[') ++depth;
    if ((c == '}' || c == ']') && --depth == 0) {
      end = i + 1;
      return Match::yes;
    }
    if (depth == 0) return Match::no;
  }
  return Match::more;
}

}  // namespace quire
