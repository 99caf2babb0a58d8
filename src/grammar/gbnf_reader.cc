#include <utility>
#include <vector>

#include "base/error.h"
#include "grammar/code_points.h"
#include "grammar/grammar_reader.h"
#include "grammar/named_rules.h"
#include "grammar/text_cursor.h"

namespace quire::grammar {
namespace {

constexpr uint32_t kMostGbnfDepth = 100, kMostGbnfRepeats = 10'000;

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

class GbnfReader {
 public:
  explicit GbnfReader(std::string_view text) : in_(text) {}

  Rules read() {
    skip_everything();
    while (!in_.done()) {
      const std::string name = take_name();
      skip_blanks();
      if (name.empty() || !in_.take("::=")) fail("a rule must look like: name ::= what it is");
      rules_.define(name, alternatives(0));
      skip_everything();
    }
    if (!rules_.is_defined("root")) throw Error("the grammar has no rule 'root' to begin with");
    const NamedRules::Node root = rules_.use("root");
    return std::move(rules_).build(root);
  }

 private:
  [[noreturn]] void fail(std::string_view what) const {
    throw Error("the grammar cannot be read at line {}: {}", in_.line(), what);
  }

  void skip_blanks() {
    while (in_.take(' ') || in_.take('\t')) {
    }
  }

  void skip_everything() {
    while (true) {
      if (in_.take('#')) {
        while (!in_.done() && in_.peek() != '\n') in_.take_character();
      } else if (!in_.take(' ') && !in_.take('\t') && !in_.take('\n') && !in_.take('\r')) {
        return;
      }
    }
  }

  std::string take_name() {
    std::string name;
    while (is_name_character(in_.peek())) {
      name += in_.peek();
      in_.take(in_.peek());
    }
    return name;
  }

  // Whether the next rule begins here.
  bool at_rule() {
    const size_t here = in_.offset();
    const bool has_name = !take_name().empty();
    skip_blanks();
    const bool is_rule = has_name && in_.starts_with("::=");
    in_.back_to(here);
    return is_rule;
  }

  NamedRules::Node alternatives(uint32_t depth) {
    if (depth > kMostGbnfDepth) fail("it is nested too deeply");
    std::vector<NamedRules::Node> parts;
    do parts.push_back(sequence(depth));
    while (in_.take('|'));
    return rules_.choice(std::move(parts));
  }

  NamedRules::Node sequence(uint32_t depth) {
    std::vector<NamedRules::Node> parts;
    while (true) {
      skip_everything();
      if (in_.done() || in_.peek_is('|') || in_.peek_is(')') || at_rule()) break;
      parts.push_back(repeated(depth));
    }
    return rules_.sequence(std::move(parts));
  }

  NamedRules::Node repeated(uint32_t depth) {
    NamedRules::Node part = atom(depth);
    while (true) {
      if (in_.take('*')) {
        part = rules_.repeat(part, 0, ExprPool::kNoMost);
      } else if (in_.take('+')) {
        part = rules_.repeat(part, 1, ExprPool::kNoMost);
      } else if (in_.take('?')) {
        part = rules_.repeat(part, 0, 1);
      } else if (in_.take('{')) {
        skip_blanks();
        const auto given = in_.take_number(kMostGbnfRepeats);
        skip_blanks();
        const uint32_t least = given.value_or(0);
        uint32_t most = least;
        if (in_.take(',')) {
          skip_blanks();
          most = in_.peek_is('}') ? ExprPool::kNoMost : number();
          skip_blanks();
        } else if (!given) {
          fail("a repetition must look like {2}, {2,} or {2,5}, of at most 10,000");
        }
        if (!in_.take('}') || most < least) fail("a repetition must look like {2}, {2,} or {2,5}");
        part = rules_.repeat(part, least, most);
      } else {
        return part;
      }
    }
  }

  uint32_t number() {
    const auto value = in_.take_number(kMostGbnfRepeats);
    if (!value) fail("a repetition must look like {2}, {2,} or {2,5}, of at most 10,000");
    return *value;
  }

  NamedRules::Node atom(uint32_t depth) {
    if (in_.take('(')) {
      const NamedRules::Node inside = alternatives(depth + 1);
      if (!in_.take(')')) fail("a ( is not closed");
      return inside;
    }
    if (in_.take('"')) return literal();
    if (in_.take('[')) return characters();
    if (in_.take('.')) return rules_.text(utf8_of(rules_.pool(), CodePoints::all()));
    const std::string name = take_name();
    if (name.empty()) fail("what stands here is neither a text, a class of characters, a group nor a rule");
    return rules_.use(name);
  }

  NamedRules::Node literal() {
    std::vector<ExprId> parts;
    while (!in_.take('"')) {
      if (in_.done()) fail("a text is not closed");
      const uint32_t c = character();
      parts.push_back(utf8_of(rules_.pool(), {c, c}));
    }
    return rules_.text(rules_.pool().concat(parts));
  }

  NamedRules::Node characters() {
    const bool negated = in_.take('^');
    CodePoints set;
    while (!in_.take(']')) {
      if (in_.done()) fail("a [ is not closed");
      const uint32_t first = character();
      uint32_t last = first;
      if (in_.peek_is('-') && !in_.starts_with("-]")) {
        in_.take('-');
        if (in_.done()) fail("a [ is not closed");
        last = character();
      }
      if (last < first) fail("a range of characters has its ends the wrong way round");
      set.add(first, last);
    }
    return rules_.text(utf8_of(rules_.pool(), negated ? set.complement() : set));
  }

  uint32_t character() {
    if (!in_.take('\\')) return in_.take_character();
    const uint32_t c = in_.take_character();
    switch (c) {
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 't':
        return '\t';
      case 'x':
        return hex(2);
      case 'u':
        return hex(4);
      case 'U':
        return hex(8);
      case '"':
      case '\\':
      case '[':
      case ']':
      case '-':
      case '^':
      case '/':
      case '\'':
        return c;
      default:
        fail("an escape is not known");
    }
  }

  uint32_t hex(int digits) {
    const auto value = in_.take_hex(digits);
    if (!value) fail("an escape lacks hexadecimal digits");
    if (*value > CodePoints::kLast || (*value >= 0xD800 && *value <= 0xDFFF))
      fail("an escape names no character");
    return *value;
  }

  NamedRules rules_;
  TextCursor in_;
};

}  // namespace

Rules read_gbnf(std::string_view text) {
  return GbnfReader(text).read();
}

Rules read_grammar(std::string_view text) {
  return text.find("::=") != std::string_view::npos ? read_gbnf(text) : read_lark(text);
}

}  // namespace quire::grammar
