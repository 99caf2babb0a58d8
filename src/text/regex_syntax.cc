#include <optional>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "text/regex.h"
#include "text/utf8.h"

namespace quire {
namespace {

// Inside [...]. PCRE2's own \s has U+180E besides, and its \w has no marks.
constexpr std::string_view kSpace =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr std::string_view kNotSpace =
    R"(\x{0}-\x{8}\x{e}-\x{1f}\x{21}-\x{84}\x{86}-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff}\x{200b}-\x{2027})"
    R"(\x{202a}-\x{202e}\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{10ffff})";
constexpr std::string_view kWord = R"(\p{L}\p{M}\p{Nd}\p{Pc})";
constexpr std::string_view kNotWord = R"(\p{Nl}\p{No}\p{Pd}\p{Ps}\p{Pe}\p{Pi}\p{Pf}\p{Po}\p{S}\p{Z}\p{C})";
constexpr std::string_view kHex = "0-9A-Fa-f";

constexpr size_t kNowhere = std::string::npos;
constexpr int kMaxClassDepth = 16;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

class Translator {
 public:
  explicit Translator(std::string_view pattern) : in_(pattern) {}

  std::string run() {
    while (at_ < in_.size()) step();
    return std::move(out_);
  }

 private:
  struct Class {
    std::string items;
    bool negated = false;
    std::string lookaheads;  // what && demands besides
  };

  [[noreturn]] void refuse(std::string_view what) const {
    throw Error("the tokenizer's regular expression uses {} near byte {}, which is not supported", what, at_);
  }

  bool next_is(std::string_view text) const { return in_.substr(at_).starts_with(text); }

  void step() {
    switch (in_[at_]) {
      case '\\':
        atom_ = out_.size();
        escape();
        break;
      case '[':
        atom_ = out_.size();
        put_class(read_class(0));
        break;
      case '(':
        open_group();
        break;
      case ')':
        if (!groups_.empty()) {
          atom_ = groups_.back();
          groups_.pop_back();
        }
        out_ += in_[at_++];
        break;
      case '{':
        interval();
        break;
      case '*':
      case '+':
      case '?':
        out_ += in_[at_++];
        break;
      default:
        atom_ = out_.size();
        copy_char();
    }
  }

  void copy_char() {
    const size_t bytes = std::min<size_t>(utf8_length(in_[at_]), in_.size() - at_);
    out_ += in_.substr(at_, bytes);
    at_ += bytes;
  }

  void open_group() {
    if (next_is("(*")) refuse("a verb, (*...),");
    groups_.push_back(out_.size());
    if (next_is("(?#")) {
      const size_t end = in_.find(')', at_);
      if (end == kNowhere) refuse("a comment without an end");
      at_ = end + 1;
      groups_.pop_back();
      return;
    }
    out_ += in_[at_++];
    if (!next_is("?")) return;
    out_ += in_[at_++];
    const size_t end = in_.find_first_not_of("imxadu-", at_);
    if (end == kNowhere || (in_[end] != ':' && in_[end] != ')')) return;
    for (; at_ < end; ++at_) {
      const char option = in_[at_];
      if (option == 'x' || option == 'a' || option == 'd' || option == 'u')
        refuse("an option other than i and m");
      out_ += option == 'm' ? 's' : option;  // Ruby's m lets the dot match a line's end
    }
    if (in_[at_] == ':') out_ += in_[at_++];
  }

  // {n}, {n,}, {,m}, {n,m}; anything else is plain text.
  void interval() {
    size_t end = at_ + 1;
    while (end < in_.size() && (is_digit(in_[end]) || in_[end] == ',')) ++end;
    if (end == in_.size() || in_[end] != '}' || end == at_ + 1 || atom_ == kNowhere) {
      atom_ = out_.size();
      out_ += "\\{";
      ++at_;
      return;
    }
    std::string_view body = in_.substr(at_ + 1, end - at_ - 1);
    out_ += '{';
    if (body.starts_with(',')) out_ += '0';
    out_ += body;
    out_ += '}';
    at_ = end + 1;
    if (next_is("+")) {  // not possessive in Ruby's flavour: the whole is repeated
      out_.insert(atom_, std::string_view("(?:"));
      out_ += ")+";
      ++at_;
    }
  }

  // The set an escape such as \s stands for, as items of a class.
  static std::optional<std::string_view> set_of(char escaped) {
    switch (escaped) {
      case 's':
        return kSpace;
      case 'S':
        return kNotSpace;
      case 'w':
        return kWord;
      case 'W':
        return kNotWord;
      case 'd':
        return R"(\p{Nd})";
      case 'D':
        return R"(\P{Nd})";
      case 'h':
        return kHex;
      default:
        return std::nullopt;
    }
  }

  void escape() {
    if (at_ + 1 >= in_.size()) refuse("a lone backslash");
    const char escaped = in_[at_ + 1];
    if (escaped == 'b' || escaped == 'B') {
      at_ += 2;
      const bool edge = escaped == 'b';
      out_ += fmt::format("(?:(?<=[{0}])(?{1}[{0}])|(?<![{0}])(?{2}[{0}]))", kWord, edge ? '!' : '=',
                          edge ? '=' : '!');
      return;
    }
    if (escaped == 'H') {
      at_ += 2;
      out_ += fmt::format("[^{}]", kHex);
      return;
    }
    if (const auto set = set_of(escaped)) {
      at_ += 2;
      out_ += fmt::format("[{}]", *set);
      return;
    }
    copy_escape(out_);
  }

  // An escape that both flavours share, or \u.
  void copy_escape(std::string& out) {
    if (at_ + 1 >= in_.size()) refuse("a lone backslash");
    const char escaped = in_[at_ + 1];
    if (escaped == 'u' && at_ + 6 <= in_.size()) {
      out += fmt::format("\\x{{{}}}", in_.substr(at_ + 2, 4));
      at_ += 6;
      return;
    }
    if ((escaped == 'p' || escaped == 'P' || escaped == 'x') && at_ + 2 < in_.size() && in_[at_ + 2] == '{') {
      const size_t end = in_.find('}', at_);
      if (end == kNowhere) refuse("a brace without an end");
      out += in_.substr(at_, end + 1 - at_);
      at_ = end + 1;
      return;
    }
    out += '\\';
    ++at_;
    const size_t bytes = std::min<size_t>(utf8_length(in_[at_]), in_.size() - at_);
    out += in_.substr(at_, bytes);
    at_ += bytes;
  }

  // REQUIRES: at a '['. Ends behind its ']'.
  Class read_class(int depth) {
    if (depth > kMaxClassDepth) refuse("classes nested too deeply");
    Class result;
    ++at_;
    if (next_is("^")) {
      result.negated = true;
      ++at_;
    }
    if (next_is("]")) {
      result.items += "\\]";
      ++at_;
    }
    read_items(result, depth);
    while (next_is("&&")) {
      at_ += 2;
      Class other;
      std::string negated_items;
      read_items(other, depth, &negated_items);
      if (result.negated || !other.lookaheads.empty() || (!other.items.empty() && !negated_items.empty())) {
        refuse("an intersection of classes this complex");
      }
      result.lookaheads += negated_items.empty() ? fmt::format("(?=[{}])", other.items)
                                                 : fmt::format("(?![{}])", negated_items);
    }
    if (!next_is("]")) refuse("a class without an end");
    ++at_;
    return result;
  }

  void read_items(Class& result, int depth, std::string* negated_items = nullptr) {
    while (at_ < in_.size() && in_[at_] != ']' && !next_is("&&")) {
      if (in_[at_] == '\\' && at_ + 1 < in_.size()) {
        if (const auto set = set_of(in_[at_ + 1])) {
          result.items += *set;
          at_ += 2;
        } else {
          copy_escape(result.items);
        }
      } else if (next_is("[:space:]")) {
        result.items += kSpace;
        at_ += 9;
      } else if (next_is("[:")) {
        const size_t end = in_.find(":]", at_);
        if (end == kNowhere) refuse("a class without an end");
        result.items += in_.substr(at_, end + 2 - at_);
        at_ = end + 2;
      } else if (in_[at_] == '[') {
        const Class nested = read_class(depth + 1);
        if (!nested.lookaheads.empty()) refuse("an intersection of classes this complex");
        if (!nested.negated) {
          result.items += nested.items;
        } else if (negated_items != nullptr && negated_items->empty()) {
          *negated_items = nested.items;
        } else {
          refuse("a negated class inside another");
        }
      } else {
        const size_t bytes = std::min<size_t>(utf8_length(in_[at_]), in_.size() - at_);
        result.items += in_.substr(at_, bytes);
        at_ += bytes;
      }
    }
  }

  void put_class(const Class& read) {
    const std::string body = fmt::format("[{}{}]", read.negated ? "^" : "", read.items);
    out_ += read.lookaheads.empty() ? body : fmt::format("(?:{}{})", read.lookaheads, body);
  }

  std::string_view in_;
  size_t at_ = 0;
  std::string out_;
  size_t atom_ = kNowhere;      // where in out_ the last thing that can be repeated starts
  std::vector<size_t> groups_;  // where in out_ the open groups start
};

}  // namespace

std::string oniguruma_to_pcre2(std::string_view pattern) {
  if (!is_valid_utf8(pattern)) throw Error("a regular expression of the tokenizer is not valid UTF-8");
  return Translator(pattern).run();
}

}  // namespace quire
