#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.h"
#include "grammar/code_points.h"
#include "grammar/grammar_reader.h"
#include "grammar/named_rules.h"
#include "grammar/regex_reader.h"
#include "grammar/text_cursor.h"

namespace quire::grammar {
namespace {

constexpr uint32_t kMostLarkDepth = 100, kMostLarkRepeats = 10'000;
constexpr const char* kIgnored = "%ignore";

struct CommonTerminal {
  std::string_view name, pattern;
};
constexpr CommonTerminal kCommonTerminals[] = {
    {"DIGIT", "[0-9]"},
    {"HEXDIGIT", "[0-9a-fA-F]"},
    {"INT", "[0-9]+"},
    {"SIGNED_INT", "[+-]?[0-9]+"},
    {"DECIMAL", R"([0-9]+\.[0-9]*|\.[0-9]+)"},
    {"FLOAT", R"([0-9]+[eE][+-]?[0-9]+|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?)"},
    {"SIGNED_FLOAT", R"([+-]?([0-9]+[eE][+-]?[0-9]+|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?))"},
    {"NUMBER", R"(([0-9]+|[0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?)"},
    {"SIGNED_NUMBER", R"([+-]?([0-9]+|[0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?)"},
    {"ESCAPED_STRING", R"("([^"\\\n]|\\[^\n])*")"},
    {"LCASE_LETTER", "[a-z]"},
    {"UCASE_LETTER", "[A-Z]"},
    {"LETTER", "[a-zA-Z]"},
    {"WORD", "[a-zA-Z]+"},
    {"CNAME", "[_a-zA-Z][_a-zA-Z0-9]*"},
    {"WS_INLINE", R"([ \t]+)"},
    {"WS", R"([ \t\f\r\n]+)"},
    {"CR", R"(\r)"},
    {"LF", R"(\n)"},
    {"NEWLINE", R"((\r?\n)+)"},
    {"SH_COMMENT", R"(#[^\n]*)"},
    {"CPP_COMMENT", R"(//[^\n]*)"},
};

bool is_lark_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

bool is_terminal_name(std::string_view name) {
  const size_t letter = name.find_first_not_of('_');
  return letter != std::string_view::npos && name[letter] >= 'A' && name[letter] <= 'Z';
}

class LarkReader {
 public:
  explicit LarkReader(std::string_view text) : in_(text) {}

  Rules read() {
    skip_everything();
    while (!in_.done()) {
      statement();
      skip_everything();
    }
    if (!rules_.is_defined("start")) throw Error("the grammar has no rule 'start' to begin with");
    for (NamedRules::Node& one : ignored_) one = rules_.repeat(one, 1, 1);
    rules_.define(kIgnored, rules_.repeat(rules_.choice(ignored_.empty() ? std::vector{nothing()} : ignored_),
                                          0, ExprPool::kNoMost));
    const NamedRules::Node root = rules_.sequence({rules_.use("start"), rules_.use(kIgnored)});
    return std::move(rules_).build(root);
  }

 private:
  [[noreturn]] void fail(std::string_view what) const {
    throw Error("the grammar cannot be read at line {}: {}", in_.line(), what);
  }

  NamedRules::Node nothing() { return rules_.text(ExprPool::kEmpty); }

  void skip_blanks() {
    while (in_.take(' ') || in_.take('\t')) {
    }
  }

  bool take_comment() {
    if (!in_.starts_with("//") && !in_.peek_is('#')) return false;
    while (!in_.done() && in_.peek() != '\n') in_.take_character();
    return true;
  }

  void skip_everything() {
    while (in_.take(' ') || in_.take('\t') || in_.take('\n') || in_.take('\r') || take_comment()) {
    }
  }

  // To where the statement goes on, if it does: a line that begins with | belongs to the one before.
  void skip_within(uint32_t depth) {
    skip_blanks();
    const size_t here = in_.offset();
    skip_everything();
    if (depth == 0 && !in_.peek_is('|')) {
      in_.back_to(here);
      take_comment();
    }
  }

  std::string take_name() {
    std::string name;
    while (is_lark_name(in_.peek())) {
      name += in_.peek();
      in_.take(in_.peek());
    }
    return name;
  }

  void statement() {
    if (in_.take("%ignore")) {
      skip_blanks();
      in_rule_ = false;
      ignored_.push_back(alternatives(0));
      return;
    }
    if (in_.take("%import")) return import();
    if (in_.peek_is('%')) fail("of the directives only %import and %ignore are supported");
    while (in_.take('?') || in_.take('!')) {
    }
    const std::string name = take_name();
    if (name.empty()) fail("a rule must look like: name: what it is");
    if (in_.peek_is('{')) fail("templates are not supported");
    if (in_.take('.')) fail("priorities are not supported");
    skip_blanks();
    if (!in_.take(':')) fail("a rule must look like: name: what it is");
    in_rule_ = !is_terminal_name(name);
    skip_blanks();
    rules_.define(name, alternatives(0));
    if (!in_.done() && !in_.peek_is('\n') && !in_.peek_is('\r'))
      fail("what stands here does not belong to a rule");
  }

  void import() {
    skip_blanks();
    if (!in_.take("common")) fail("only 'common' can be imported from");
    std::vector<std::string> names;
    if (in_.take('.')) {
      names.push_back(take_name());
    } else {
      skip_blanks();
      if (!in_.take('(')) fail("an import must look like: %import common.NUMBER");
      do {
        skip_blanks();
        names.push_back(take_name());
        skip_blanks();
      } while (in_.take(','));
      if (!in_.take(')')) fail("a ( is not closed");
    }
    skip_blanks();
    std::string alias = names[0];
    if (in_.take("->")) {
      skip_blanks();
      alias = take_name();
      if (names.size() != 1 || alias.empty()) fail("another name belongs to one import");
    }
    for (const std::string& name : names) {
      const auto found = std::ranges::find(kCommonTerminals, name, &CommonTerminal::name);
      if (found == std::end(kCommonTerminals)) fail("common has no such terminal, or it is not supported");
      rules_.define(names.size() == 1 ? alias : name,
                    rules_.text(read_regex(rules_.pool(), found->pattern, {})));
    }
  }

  NamedRules::Node alternatives(uint32_t depth) {
    if (depth > kMostLarkDepth) fail("it is nested too deeply");
    std::vector<NamedRules::Node> parts;
    do parts.push_back(sequence(depth));
    while (in_.take('|'));
    return rules_.choice(std::move(parts));
  }

  NamedRules::Node sequence(uint32_t depth) {
    std::vector<NamedRules::Node> parts;
    while (true) {
      skip_within(depth);
      if (in_.done() || in_.peek_is('|') || in_.peek_is(')') || in_.peek_is(']') || in_.peek_is('\n') ||
          in_.peek_is('\r'))
        break;
      if (in_.take("->")) {  // a name for the tree that Lark would build
        skip_blanks();
        if (take_name().empty()) fail("-> must be followed by a name");
        continue;
      }
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
      } else if (in_.take('~')) {
        skip_blanks();
        const uint32_t least = number();
        const uint32_t most = in_.take("..") ? number() : least;
        if (most < least) fail("a repetition has its bounds the wrong way round");
        part = rules_.repeat(part, least, most);
      } else {
        return part;
      }
    }
  }

  uint32_t number() {
    const auto value = in_.take_number(kMostLarkRepeats);
    if (!value) fail("a number of at most 10,000 is missing");
    return *value;
  }

  // What is ignored may stand before every terminal of a rule; inside terminals nothing is.
  NamedRules::Node terminal(NamedRules::Node node) {
    return in_rule_ ? rules_.sequence({rules_.use(kIgnored), node}) : node;
  }

  NamedRules::Node atom(uint32_t depth) {
    if (in_.take('(')) {
      const NamedRules::Node inside = alternatives(depth + 1);
      if (!in_.take(')')) fail("a ( is not closed");
      return inside;
    }
    if (in_.take('[')) {
      const NamedRules::Node inside = alternatives(depth + 1);
      if (!in_.take(']')) fail("a [ is not closed");
      return rules_.repeat(inside, 0, 1);
    }
    if (in_.peek_is('"')) return terminal(text_or_range());
    if (in_.take('/')) return terminal(pattern());
    const std::string name = take_name();
    if (name.empty()) fail("what stands here is neither a text, a pattern, a group nor a rule");
    if (in_.peek_is('{')) fail("templates are not supported");
    return is_terminal_name(name) ? terminal(rules_.use(name)) : rules_.use(name);
  }

  NamedRules::Node text_or_range() {
    const std::vector<uint32_t> characters = text();
    if (in_.take("..")) {
      const std::vector<uint32_t> last = text();
      if (characters.size() != 1 || last.size() != 1 || last[0] < characters[0])
        fail("a range must look like \"a\"..\"z\"");
      return rules_.text(utf8_of(rules_.pool(), {characters[0], last[0]}));
    }
    const bool ignores_case = in_.take('i');
    std::vector<ExprId> parts;
    for (const uint32_t c : characters) {
      CodePoints set(c, c);
      const uint32_t other = c ^ 0x20, lower = c | 0x20;
      if (ignores_case && lower >= 'a' && lower <= 'z') set.add(other, other);
      parts.push_back(utf8_of(rules_.pool(), set));
    }
    return rules_.text(rules_.pool().concat(parts));
  }

  std::vector<uint32_t> text() {
    if (!in_.take('"')) fail("a text must stand here");
    std::vector<uint32_t> characters;
    while (!in_.take('"')) {
      if (in_.done() || in_.peek_is('\n')) fail("a text is not closed");
      uint32_t c = in_.take_character();
      if (c == '\\') {
        c = in_.take_character();
        switch (c) {
          case 'n':
            c = '\n';
            break;
          case 'r':
            c = '\r';
            break;
          case 't':
            c = '\t';
            break;
          case 'f':
            c = '\f';
            break;
          case 'v':
            c = '\v';
            break;
          case 'x':
            c = hex(2);
            break;
          case 'u':
            c = hex(4);
            break;
          case 'U':
            c = hex(8);
            break;
          case '"':
          case '\'':
          case '/':
          case '\\':
            break;
          default:
            fail("an escape is not known");
        }
      }
      characters.push_back(c);
    }
    return characters;
  }

  uint32_t hex(int digits) {
    const auto value = in_.take_hex(digits);
    if (!value || *value > CodePoints::kLast || (*value >= 0xD800 && *value <= 0xDFFF))
      fail("an escape names no character");
    return *value;
  }

  NamedRules::Node pattern() {
    std::string pattern;
    while (!in_.take('/')) {
      if (in_.done() || in_.peek_is('\n')) fail("a pattern is not closed");
      const size_t begin = in_.offset();
      if (in_.take('\\') && in_.peek_is('/')) {
        pattern += '/';
        in_.take('/');
        continue;
      }
      in_.take_character();
      pattern += in_.text().substr(begin, in_.offset() - begin);
    }
    RegexOptions options;
    while (true) {
      if (in_.take('i')) {
        options.ignore_case = true;
      } else if (in_.take('s')) {
        options.dot_is_newline_too = true;
      } else if (in_.peek() >= 'a' && in_.peek() <= 'z') {
        if (!in_.take('u')) fail("of the flags of patterns only i and s are supported");
      } else {
        break;
      }
    }
    return rules_.text(read_regex(rules_.pool(), pattern, options));
  }

  NamedRules rules_;
  TextCursor in_;
  bool in_rule_ = false;
  std::vector<NamedRules::Node> ignored_;
};

}  // namespace

Rules read_lark(std::string_view text) {
  return LarkReader(text).read();
}

}  // namespace quire::grammar
