#include "grammar/grammar.h"

#include <random>

#include <gtest/gtest.h>

#include "base/error.h"
#include "grammar/call_rules.h"
#include "grammar/code_points.h"
#include "grammar/grammar_compiler.h"

namespace quire::grammar {
namespace {

using Kind = GrammarSource::Kind;

// Every byte is a token, and some words are.
std::vector<std::string> small_vocabulary() {
  std::vector<std::string> bytes;
  for (int byte = 0; byte < 256; ++byte) bytes.emplace_back(1, char(byte));
  for (const char* word :
       {"ab", "abc", "{\"", "\":", "\", \"", "true", "10", "\": \"", "éa", "\xC3", "a\"}", "]}", ", "})
    bytes.emplace_back(word);
  bytes.emplace_back("");
  return bytes;
}

std::shared_ptr<Grammar> make(Kind kind, const std::string& text) {
  static GrammarCompiler compiler(small_vocabulary());
  return compiler.compile({kind, text});
}

void expect(Kind kind, const std::string& source, const std::vector<std::string>& in,
            const std::vector<std::string>& out) {
  const auto grammar = make(kind, source);
  for (const std::string& text : in)
    EXPECT_TRUE(grammar->accepts(text)) << source << "\n  must accept " << text;
  for (const std::string& text : out)
    EXPECT_FALSE(grammar->accepts(text)) << source << "\n  must refuse " << text;
}

std::string problem_of(Kind kind, const std::string& source) {
  try {
    make(kind, source);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Grammar, FollowsRegularExpressions) {
  expect(Kind::regex, "a+b?(c|d){2}", {"acc", "aabcd"}, {"", "ac", "bcc", "accc"});
  expect(Kind::regex, "^[^a-c\\d]*$", {"", "xyz", "é"}, {"a", "x1", "\xC3"});
  expect(Kind::regex, "(?:\\w+\\s)*end", {"end", "a b_c end"}, {"a  end", "ende"});
  expect(Kind::regex, "x{0,3}y|\\u00e9\\x41", {"y", "xxxy", "éA"}, {"xxxxy", "é"});
  expect(Kind::regex, ".*", {"", "any é"}, {"a\nb"});
  expect(Kind::regex, "(a|ab)(c|bcd)(d*)", {"abcd", "ac", "abcdd"}, {"ab", "abd"});
}

TEST(Grammar, RefusesExpressionsThatAreNotRegular) {
  for (const char* pattern :
       {"a(?=b)", "(?<!a)b", "(a)\\1", "\\bword", "\\p{L}", "a++", "*", "(", "[a", "a{3,1}", "a{999999999}"})
    EXPECT_NE(problem_of(Kind::regex, pattern), "") << pattern;
}

TEST(Grammar, ReadsGbnf) {
  const char* kArithmetic = R"g(
# sums
root ::= sum
sum ::= term (("+" | "-") term)*
term ::= number | "(" sum ")"
number ::= [0-9]+ ("." [0-9]{1,2})?
)g";
  expect(Kind::grammar, kArithmetic, {"1", "1+2", "(1+2)-3.25", "((4))"}, {"", "1+", "(1", "1.234", "1 + 2"});
  expect(Kind::grammar, "root ::= \"a\" root \"b\" | \"\"", {"", "ab", "aaabbb"}, {"aab", "ba"});
  expect(Kind::grammar, "root ::= [a-z] root | [a-z]", {"a", "abc"}, {"", "aB"});
  expect(Kind::grammar, "root ::= root \"x\" | \"y\"", {"y", "yxx"}, {"x", "xy"});
  EXPECT_NE(problem_of(Kind::grammar, "root ::= other").find("'other'"), std::string::npos);
  EXPECT_NE(problem_of(Kind::grammar, "root ::= root"), "");
}

TEST(Grammar, ReadsLark) {
  const char* kList = R"g(
start: "[" [item ("," item)*] "]"
item: NAME "=" NUMBER   -> pair
    | start
NAME: /[a-z]+/i
%import common.NUMBER
%import common.WS
%ignore WS
)g";
  expect(Kind::grammar, kList, {"[]", "[a=1]", "[ a = 1.5 , [B=2] ]\n"}, {"[a]", "[a=1", "[a=1,]"});
  expect(Kind::grammar, "start: \"x\"~2..3 \"a\"..\"c\"?", {"xx", "xxxc"}, {"x", "xxd"});
}

TEST(Grammar, ForgetsNothingWhenItGoesBack) {
  Constraint one(make(Kind::regex, "(abc)*d"));
  const auto before = *one.mask();
  ASSERT_TRUE(one.advance('a'));
  ASSERT_TRUE(one.advance('b'));
  EXPECT_FALSE(one.advance('a'));
  EXPECT_EQ(one.tokens().size(), 2u);
  one.rollback(2);
  EXPECT_EQ(*one.mask(), before);
  EXPECT_FALSE(one.may_end());
  ASSERT_TRUE(one.advance('d'));
  EXPECT_TRUE(one.may_end());
  EXPECT_TRUE(one.must_end());
}

// The tokens that a mask has are those that could be gone on with, no more and no fewer: over random texts of many grammars.
TEST(Grammar, MasksWhatAdvanceAllows) {
  const std::pair<Kind, const char*> sources[] = {
      {Kind::regex, "(\"[^\"\\\\]{0,9}\",? ?)+"},
      {Kind::regex, "[^x]*"},
      {Kind::json_schema,
       R"({"type":"object","properties":{"a":{"type":"string"},"ab":{"type":"integer"}},"required":["a"]})"},
      {Kind::json_schema, R"({"type":"array","items":{"type":"string","maxLength":3}})"},
      {Kind::json_schema, "true"},
      {Kind::grammar, "root ::= \"a\" root \"b\" | \"\" | root \"c\""},
      {Kind::json_schema, R"({"type":"string","not":{"enum":["ab","abc",""]}})"},
      {Kind::json_schema, R"({"type":"string","not":{"pattern":"abc"}})"},
      {Kind::json_schema, R"({"type":"string","pattern":"b.*c$","minLength":2})"},
      {Kind::json_schema,
       R"({"anyOf":[{"type":"string","maxLength":2},{"const":"abcabc"},{"pattern":"^a"}]})"},
      {Kind::json_schema,
       R"({"patternProperties":{"^a":{"type":"integer"},"c":{"type":"string"}},"additionalProperties":{"enum":["ab"]}})"},
      {Kind::json_schema, R"({"type":"object","propertyNames":{"pattern":"^(a|é)+"},"minProperties":2})"},
  };
  std::mt19937 random(7);
  for (const auto& [kind, source] : sources) {
    for (int run = 0; run < 4; ++run) {
      Constraint constraint(make(kind, source));
      for (int step = 0; step < 40; ++step) {
        const auto mask = constraint.mask();
        std::vector<TokenId> allowed;
        for (TokenId token = 0; token < small_vocabulary().size(); ++token) {
          const bool goes = constraint.advance(token);
          if (goes) constraint.rollback(1);
          ASSERT_EQ(goes, has_token(*mask, token)) << source << " token " << token;
          if (goes) allowed.push_back(token);
        }
        if (allowed.empty()) {
          EXPECT_TRUE(constraint.may_end());
          break;
        }
        ASSERT_TRUE(constraint.advance(allowed[random() % allowed.size()]));
      }
    }
  }
}

// The same where what begins with a token is allowed whole, or is not because of one byte: over words of all kinds of bytes.
TEST(Grammar, MasksWordsOfAllKindsOfBytes) {
  std::mt19937 random(11);
  std::vector<std::string> words;
  const std::string_view letters[] = {"a", "b", "yz", "A", "Z", "0", "9", " ", "_", "\"", "é", "\xC3"};
  for (int i = 0; i < 1500; ++i) {
    std::string& word = words.emplace_back();
    for (size_t pieces = 1 + random() % 4; pieces > 0; --pieces)
      word += letters[random() % (i % 3 == 0 ? 12 : 3)];
  }
  GrammarCompiler compiler(words);
  for (const char* source : {"([a-z]+ ){3}", "([a-y ]+z){2,}", "[A-Za-z]*\\d+", "\\w+(-\\w+)*", "[^a]*",
                             "(a|b)*yz*", "([a-zé]+[0-9]){2}.*"}) {
    for (int run = 0; run < 2; ++run) {
      Constraint constraint(compiler.compile({Kind::regex, source}));
      for (int step = 0; step < 8; ++step) {
        const auto mask = constraint.mask();
        std::vector<TokenId> allowed;
        for (TokenId token = 0; token < words.size(); ++token) {
          const bool goes = constraint.advance(token);
          if (goes) constraint.rollback(1);
          ASSERT_EQ(goes, has_token(*mask, token)) << source << " token " << words[token];
          if (goes) allowed.push_back(token);
        }
        if (allowed.empty()) break;
        ASSERT_TRUE(constraint.advance(allowed[random() % allowed.size()]));
      }
    }
  }
}

// What saves the walk through all plain tokens: a string that may go on with any of them says so.
TEST(Grammar, SeesWhereAnyPlainTextMayFollow) {
  ExprPool pool;
  const ExprId any = pool.repeat(json_char(pool, JsonSpelling::one), 0, ExprPool::kNoMost);
  const ExprId quote = pool.literal("\""), word = pool.literal("word");
  const auto run = [&](ExprId content) { return pool.plain_run(pool.concat(content, quote)); };
  const auto kEndless = std::optional(ExprPool::kNoMost);
  EXPECT_EQ(run(any), kEndless);
  EXPECT_EQ(run(pool.all_of({any, pool.complement(pool.literals({"a", "ab", "b"}))})), kEndless);
  EXPECT_EQ(run(pool.any_of({word, any})), kEndless);
  const ExprId holds_word = pool.concat(any, pool.concat(word, any));
  EXPECT_EQ(run(holds_word), kEndless);
  EXPECT_EQ(run(pool.all_of({holds_word, pool.complement(word)})), kEndless);
  EXPECT_EQ(run(pool.concat(holds_word, pool.optional(word))), kEndless);
  EXPECT_NE(run(word), kEndless);
  EXPECT_NE(run(pool.concat(word, any)), kEndless);
  EXPECT_NE(run(pool.all_of({any, pool.complement(holds_word)})), kEndless);
  EXPECT_EQ(run(pool.repeat(json_char(pool, JsonSpelling::one), 2, 5)), std::optional(5u));
}

TEST(Grammar, SpellsWhatIsForced) {
  Constraint one(make(Kind::json_schema, R"({"const":"abcabcabc"})"));
  const std::vector<TokenId> forced = one.forced(20);
  ASSERT_FALSE(forced.empty());
  for (const TokenId token : forced) EXPECT_TRUE(one.advance(token));
}

TEST(Grammar, WritesToolCalls) {
  CallRules calls;
  calls.tools = {
      {"sum",
       OrderedJson::parse(
           R"({"type":"object","properties":{"a":{"type":"integer"}},"required":["a"],"additionalProperties":false})")},
      {"clock", nullptr}};
  const std::string sum = "<tool_call>\n{\"name\": \"sum\", \"arguments\": {\"a\": 1}}\n</tool_call>";
  const std::string clock =
      "<tool_call>\n{\"name\": \"clock\", \"arguments\": {\"zone\": [1]}}\n</tool_call>";
  GrammarCompiler compiler(small_vocabulary());
  const auto one = compiler.compile(call_source(calls));
  EXPECT_TRUE(one->accepts(sum));
  EXPECT_TRUE(one->accepts(clock));
  EXPECT_FALSE(one->accepts(sum + "\n" + clock));
  EXPECT_FALSE(one->accepts("hello"));
  calls.place = CallPlace::after_text;
  calls.most_calls = ExprPool::kNoMost;
  const auto free = compiler.compile(call_source(calls));
  EXPECT_TRUE(free->accepts("hello"));
  EXPECT_TRUE(free->accepts("one moment <tool" + sum + "\n" + clock + "\n"));
  EXPECT_FALSE(free->accepts("<tool_call>nothing"));
}

GrammarSource schema_of_its_own(int i) {
  return {
      Kind::json_schema,
      fmt::format(
          R"({{"type":"object","properties":{{"p{}":{{"type":"string","pattern":"^[a-z]+-{}$"}}}},"required":["p{}"]}})",
          i, i, i)};
}

TEST(Grammar, ManyShareOneBudget) {
  GrammarCompiler compiler(small_vocabulary());
  constexpr size_t kMost = size_t(4) << 20;
  compiler.budget().set_most(kMost);
  std::vector<std::shared_ptr<Grammar>> in_use;
  size_t most = 0;
  for (int i = 0; i < 2000; ++i) {
    const auto grammar = compiler.compile(schema_of_its_own(i));
    EXPECT_TRUE(grammar->accepts(fmt::format(R"({{"p{}":"abc-{}"}})", i, i)));
    Constraint one(grammar);
    one.mask();
    if (i % 400 == 0) in_use.push_back(grammar);
    most = std::max(most, compiler.budget().figures().bytes);
  }
  EXPECT_LE(most, kMost + (64 << 10));  // what a question needs while it is asked
  const GrammarFigures figures = compiler.budget().figures();
  EXPECT_EQ(figures.compiled, 2000u);
  EXPECT_GT(figures.bytes, 0u);
  EXPECT_EQ(figures.refused, 0u);
  for (size_t i = 0; i < in_use.size(); ++i)  // what they forgot they find out again
    EXPECT_TRUE(in_use[i]->accepts(fmt::format(R"({{"p{}":"abc-{}"}})", 400 * i, 400 * i)));
}

TEST(Grammar, AnAnswerGoesOnWhenItsGrammarForgot) {
  GrammarCompiler compiler(small_vocabulary());
  const auto grammar = compiler.compile(schema_of_its_own(7)), other = compiler.compile(schema_of_its_own(8));
  const std::string text = R"({"p7":"abc-7"})";
  Constraint one(grammar);
  for (const char c : text.substr(0, 8)) ASSERT_TRUE(one.advance(TokenId(uint8_t(c))));
  const TokenMask before = *one.mask();
  compiler.budget().set_most(0);
  other->accepts("{");
  EXPECT_GT(compiler.budget().figures().forgotten, 0u);
  compiler.budget().set_most(size_t(64) << 20);
  EXPECT_EQ(*one.mask(), before);
  for (const char c : text.substr(8)) ASSERT_TRUE(one.advance(TokenId(uint8_t(c))));
  EXPECT_TRUE(one.may_end());
}

TEST(Grammar, IsRefusedWhereThoseInUseLeaveNoRoom) {
  GrammarCompiler compiler(small_vocabulary());
  compiler.budget().set_most(size_t(1) << 20);
  std::vector<std::shared_ptr<Grammar>> in_use;
  const auto fill = [&] {
    for (int i = 0; i < 10'000; ++i) in_use.push_back(compiler.compile(schema_of_its_own(i)));
  };
  EXPECT_THROW(fill(), NoGrammarRoom);
  EXPECT_EQ(compiler.budget().figures().refused, 1u);
  EXPECT_GT(in_use.size(), 1u);
  in_use.clear();
  EXPECT_NO_THROW(compiler.compile(schema_of_its_own(-1)));
}

TEST(Grammar, BoundsWhatIsHostile) {
  EXPECT_NE(problem_of(Kind::regex, std::string(3000, '(') + std::string(3000, ')')), "");
  EXPECT_NO_THROW(make(Kind::regex, "((a*)*)*b")->accepts(std::string(2000, 'a')));
  EXPECT_NO_THROW(make(Kind::regex, "(.*a.{12}){3}")->accepts(std::string(300, 'a')));
  std::string exponential = "root ::= r0\n";
  for (int i = 0; i < 40; ++i) exponential += fmt::format("r{} ::= r{} r{}\n", i, i + 1, i + 1);
  exponential += "r40 ::= \"a\"\n";
  EXPECT_NO_THROW(make(Kind::grammar, exponential)->accepts("aaaa"));
}

}  // namespace
}  // namespace quire::grammar
