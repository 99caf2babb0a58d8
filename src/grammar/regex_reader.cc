#include "grammar/regex_reader.h"

#include <array>
#include <optional>

#include "base/error.h"
#include "grammar/text_cursor.h"

namespace quire::grammar {
namespace {

constexpr uint32_t kMostRepeats = 100'000, kMostRegexDepth = 200;
constexpr std::string_view kTooOften = "it repeats something more than 100,000 times";

CodePoints digits() {
  return {'0', '9'};
}

CodePoints word_characters() {
  CodePoints set('a', 'z');
  set.add('A', 'Z');
  set.add('0', '9');
  set.add('_', '_');
  return set;
}

CodePoints spaces() {
  CodePoints set('\t', '\r');
  for (const uint32_t c : {0x20u, 0xA0u, 0x1680u, 0x2028u, 0x2029u, 0x202Fu, 0x205Fu, 0x3000u, 0xFEFFu})
    set.add(c, c);
  set.add(0x2000, 0x200A);
  return set;
}

// Texts by whether they must begin where the whole text does, and end where it does: [begins][ends].
struct Anchored {
  std::array<std::array<ExprId, 2>, 2> texts{};  // ExprPool::kNothing

  bool is_anchored() const {
    return texts[0][1] != ExprPool::kNothing || texts[1][0] != ExprPool::kNothing ||
           texts[1][1] != ExprPool::kNothing;
  }
};

Anchored plain(ExprId text) {
  Anchored result;
  result.texts[0][0] = text;
  return result;
}

class RegexReader {
 public:
  RegexReader(ExprPool& pool, std::string_view pattern, const RegexOptions& options)
      : pool_(pool), in_(pattern), options_(options) {}

  ExprId read() {
    const Anchored all = alternatives(0);
    if (!in_.done()) fail("a ) closes nothing");
    std::vector<ExprId> parts;
    const ExprId any = options_.whole == RegexWhole::text
                           ? ExprPool::kEmpty
                           : pool_.repeat(spell(CodePoints::all()), 0, ExprPool::kNoMost);
    for (int begins = 0; begins < 2; ++begins) {
      for (int ends = 0; ends < 2; ++ends) {
        const ExprId list[] = {begins ? ExprPool::kEmpty : any, all.texts[begins][ends],
                               ends ? ExprPool::kEmpty : any};
        parts.push_back(pool_.concat(list));
      }
    }
    return pool_.any_of(std::move(parts));
  }

 private:
  [[noreturn]] void fail(std::string_view what) const {
    throw Error("the pattern '{}' cannot be used: {}", in_.text(), what);
  }

  ExprId spell(const CodePoints& set) {
    return options_.spelling == RegexSpelling::utf8 ? utf8_of(pool_, set) : json_of(pool_, set);
  }

  ExprId characters(CodePoints set) {
    if (options_.ignore_case) {
      for (uint32_t c = 'a'; c <= 'z'; ++c) {
        CodePoints both(c, c);
        both.add(c - 32, c - 32);
        if (!(set.without(both) == set)) set.add(both);
      }
    }
    return spell(set);
  }

  Anchored alternatives(uint32_t depth) {
    if (depth > kMostRegexDepth) fail("it is nested too deeply");
    std::array<std::array<std::vector<ExprId>, 2>, 2> parts;
    do {
      const Anchored one = sequence(depth);
      for (int begins = 0; begins < 2; ++begins) {
        for (int ends = 0; ends < 2; ++ends) parts[begins][ends].push_back(one.texts[begins][ends]);
      }
    } while (in_.take('|'));
    Anchored result;
    for (int begins = 0; begins < 2; ++begins) {
      for (int ends = 0; ends < 2; ++ends) result.texts[begins][ends] = pool_.any_of(parts[begins][ends]);
    }
    return result;
  }

  Anchored sequence(uint32_t depth) {
    std::vector<Anchored> parts;
    std::vector<ExprId> run;  // parts without anchors are joined from the end, which is cheap
    const auto flush = [&] {
      if (!run.empty()) parts.push_back(plain(pool_.concat(run)));
      run.clear();
    };
    while (!in_.done() && in_.peek() != '|' && in_.peek() != ')') {
      const Anchored one = repeated(depth);
      if (one.is_anchored()) {
        flush();
        parts.push_back(one);
      } else {
        run.push_back(one.texts[0][0]);
      }
    }
    flush();
    Anchored result = plain(ExprPool::kEmpty);
    for (const Anchored& part : parts) result = join(result, part);
    return result;
  }

  Anchored join(const Anchored& a, const Anchored& b) {
    std::array<std::array<std::vector<ExprId>, 2>, 2> parts;
    for (int i = 0; i < 16; ++i) {
      const int begins = i & 1, a_ends = i >> 1 & 1, b_begins = i >> 2 & 1, ends = i >> 3 & 1;
      ExprId left = a.texts[begins][a_ends], right = b.texts[b_begins][ends];
      if (left == ExprPool::kNothing || right == ExprPool::kNothing) continue;
      // Nothing stands before a beginning, nor after an end.
      if (b_begins) {
        if (!pool_.nullable(left)) continue;
        left = ExprPool::kEmpty;
      }
      if (a_ends) {
        if (!pool_.nullable(right)) continue;
        right = ExprPool::kEmpty;
      }
      parts[begins | b_begins][ends | a_ends].push_back(pool_.concat(left, right));
    }
    Anchored result;
    for (int begins = 0; begins < 2; ++begins) {
      for (int ends = 0; ends < 2; ++ends) result.texts[begins][ends] = pool_.any_of(parts[begins][ends]);
    }
    return result;
  }

  Anchored repeated(uint32_t depth) {
    Anchored one = atom(depth);
    while (const auto times = quantifier()) {
      const auto [least, most] = *times;
      if (!in_.take('?') && in_.peek_is('+')) fail("possessive repetitions are not supported");
      if (!one.is_anchored()) {
        one = plain(pool_.repeat(one.texts[0][0], least, most));
      } else if (least <= 1 && most == 1) {
        if (least == 0) one.texts[0][0] = pool_.any_of({one.texts[0][0], ExprPool::kEmpty});
      } else {
        fail("^ and $ cannot be repeated");
      }
    }
    return one;
  }

  std::optional<std::pair<uint32_t, uint32_t>> quantifier() {
    if (in_.take('*')) return {{0, ExprPool::kNoMost}};
    if (in_.take('+')) return {{1, ExprPool::kNoMost}};
    if (in_.take('?')) return {{0, 1}};
    if (!in_.peek_is('{')) return std::nullopt;
    const size_t begin = in_.offset();
    in_.take('{');
    const bool is_number = in_.peek() >= '0' && in_.peek() <= '9';
    const auto least = in_.take_number(kMostRepeats);
    if (is_number && !least) fail(kTooOften);
    auto most = least;
    if (least && in_.take(',')) {
      most = in_.peek_is('}') ? ExprPool::kNoMost : in_.take_number(kMostRepeats);
      if (!most && in_.peek() >= '0' && in_.peek() <= '9') fail(kTooOften);
    }
    if (!least || !most || !in_.take('}')) {  // then it is a brace like any other character
      in_.back_to(begin);
      return std::nullopt;
    }
    if (*most < *least) fail("a repetition has its bounds the wrong way round");
    return {{*least, *most}};
  }

  Anchored atom(uint32_t depth) {
    if (in_.take('^')) {
      Anchored begin;
      begin.texts[1][0] = ExprPool::kEmpty;
      return begin;
    }
    if (in_.take('$')) {
      Anchored end;
      end.texts[0][1] = ExprPool::kEmpty;
      return end;
    }
    if (in_.take('(')) return group(depth);
    if (in_.take('[')) return plain(characters(char_class()));
    if (in_.take('.')) {
      CodePoints newlines('\n', '\n');
      newlines.add('\r', '\r');
      newlines.add(0x2028, 0x2029);
      return plain(spell(options_.dot_is_newline_too ? CodePoints::all() : newlines.complement()));
    }
    if (in_.take('\\')) return escape();
    const uint32_t c = in_.take_character();
    if (c == '*' || c == '+' || c == '?') fail("a repetition has nothing before it");
    return plain(characters({c, c}));
  }

  Anchored group(uint32_t depth) {
    if (in_.take('?')) {
      if (in_.take("<=") || in_.take("<!") || in_.take('=') || in_.take('!'))
        fail("look-ahead and look-behind are not supported");
      if (in_.take('P')) {
        if (!in_.peek_is('<')) fail("references to groups are not supported");
      }
      if (in_.take('<')) {
        while (!in_.done() && in_.peek() != '>') in_.take_character();
        if (!in_.take('>')) fail("the name of a group does not end");
      } else if (!in_.take(':')) {
        fail("of the groups that begin with (? only (?: and named ones are supported");
      }
    }
    const Anchored inside = alternatives(depth + 1);
    if (!in_.take(')')) fail("a ( is not closed");
    return inside;
  }

  Anchored escape() {
    if (in_.done()) fail("it ends with a backslash");
    if (in_.peek_is('b') || in_.peek_is('B')) fail("word boundaries are not supported");
    if (in_.take('A')) {
      Anchored begin;
      begin.texts[1][0] = ExprPool::kEmpty;
      return begin;
    }
    if (in_.take('Z') || in_.take('z')) {
      Anchored end;
      end.texts[0][1] = ExprPool::kEmpty;
      return end;
    }
    if (in_.peek() >= '1' && in_.peek() <= '9') fail("back-references are not supported");
    return plain(characters(escaped()));
  }

  // After the backslash: the characters that are meant.
  CodePoints escaped() {
    const uint32_t c = in_.take_character();
    switch (c) {
      case 'd':
        return digits();
      case 'D':
        return digits().complement();
      case 'w':
        return word_characters();
      case 'W':
        return word_characters().complement();
      case 's':
        return spaces();
      case 'S':
        return spaces().complement();
      case 'n':
        return {'\n', '\n'};
      case 't':
        return {'\t', '\t'};
      case 'r':
        return {'\r', '\r'};
      case 'f':
        return {'\f', '\f'};
      case 'v':
        return {'\v', '\v'};
      case 'a':
        return {'\a', '\a'};
      case '0':
        return {0, 0};
      case 'x':
        return one(in_.peek_is('{') ? braced() : hex(2));
      case 'u':
        return one(in_.peek_is('{') ? braced() : utf16());
      case 'c':
        return one(in_.take_character() & 0x1F);
      case 'p':
      case 'P':
        fail("properties of characters (\\p) are not supported");
      default:
        break;
    }
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '1' && c <= '9'))
      fail("it has an escape that is not known");
    return one(c);
  }

  CodePoints one(uint32_t c) {
    if (c > CodePoints::kLast || (c >= 0xD800 && c <= 0xDFFF))
      fail("it names something that is no character");
    return {c, c};
  }

  uint32_t hex(int count) {
    const auto value = in_.take_hex(count);
    if (!value) fail("an escape lacks hexadecimal digits");
    return *value;
  }

  uint32_t braced() {
    in_.take('{');
    const auto value = in_.take_hex_up_to(6);
    if (!value || !in_.take('}')) fail("an escape in braces is broken");
    return *value;
  }

  uint32_t utf16() {
    const uint32_t high = hex(4);
    if (high < 0xD800 || high > 0xDBFF || !in_.take("\\u")) return high;
    const uint32_t low = hex(4);
    if (low < 0xDC00 || low > 0xDFFF) fail("it names something that is no character");
    return 0x10000 + ((high - 0xD800) << 10 | (low - 0xDC00));
  }

  CodePoints char_class() {
    const bool negated = in_.take('^');
    CodePoints set;
    bool first = true;
    for (;; first = false) {
      if (in_.done()) fail("a [ is not closed");
      if (!first && in_.take(']')) break;
      if (first && in_.take(']')) {  // as JavaScript has it: nothing, or everything
        break;
      }
      if (in_.peek_is('[') && (in_.text().substr(in_.offset()).starts_with("[:")))
        fail("named classes are not supported");
      const CodePoints from = class_member();
      if (!is_one(from) || !in_.peek_is('-') || in_.text().substr(in_.offset()).starts_with("-]")) {
        set.add(from);
        continue;
      }
      in_.take('-');
      const CodePoints to = class_member();
      if (!is_one(to)) fail("a range in brackets ends in a set of characters");
      const uint32_t low = from.ranges()[0].first, high = to.ranges()[0].first;
      if (high < low) fail("a range in brackets has its ends the wrong way round");
      set.add(low, high);
    }
    return negated ? set.complement() : set;
  }

  CodePoints class_member() {
    if (in_.done()) fail("a [ is not closed");
    if (!in_.take('\\')) {
      const uint32_t c = in_.take_character();
      return {c, c};
    }
    if (in_.done()) fail("it ends with a backslash");
    if (in_.take('b')) return {'\b', '\b'};
    if (in_.take('-')) return {'-', '-'};
    return escaped();
  }

  static bool is_one(const CodePoints& set) {
    return set.ranges().size() == 1 && set.ranges()[0].first == set.ranges()[0].second;
  }

  ExprPool& pool_;
  TextCursor in_;
  RegexOptions options_;
};

}  // namespace

ExprId read_regex(ExprPool& pool, std::string_view pattern, const RegexOptions& options) {
  return RegexReader(pool, pattern, options).read();
}

}  // namespace quire::grammar
