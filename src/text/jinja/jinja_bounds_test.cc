// What a template may not do, and how much.
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "text/jinja/jinja_case.h"

namespace quire::jinja {
namespace {

using testing::HasSubstr;

TEST(JinjaErrors, SayWhatIsWrongAndWhere) {
  EXPECT_EQ(failure_of("a\n{{ nope.x }}"), "chat template, line 2: 'nope' is undefined");
  EXPECT_EQ(failure_of("{{ people[0].x.y }}"), "chat template, line 1: 'dict object' has no attribute 'x'");
  EXPECT_EQ(failure_of("{{ 'a' + 1 }}"),
            "chat template, line 1: can only concatenate str (not \"int\") to str");
  EXPECT_EQ(failure_of("{{ 1 / 0 }}"), "chat template, line 1: division by zero");
  EXPECT_EQ(failure_of("\n\n{% for x in 5 %}{% endfor %}"),
            "chat template, line 3: 'int' object is not iterable");
  EXPECT_THAT(failure_of("{{ x | nofilter }}"), HasSubstr("No filter named 'nofilter'"));
  EXPECT_THAT(failure_of("{% if true %}"), HasSubstr("ends before 'endif'"));
  EXPECT_THAT(failure_of("{{ 'a }}"), HasSubstr("a string has no end"));
  EXPECT_THAT(failure_of("{% frobnicate %}"), HasSubstr("unknown tag 'frobnicate'"));
  EXPECT_THAT(failure_of("{% break %}"), HasSubstr("outside of a loop"));
}

TEST(JinjaErrors, HandOverTheTemplatesOwnMessageAsItIs) {
  EXPECT_EQ(failure_of("\n{{ raise_exception('Roles must alternate {}!') }}"), "Roles must alternate {}!");
}

TEST(JinjaErrors, ForbidChangingListsAndDicts) {
  EXPECT_THAT(failure_of("{% set q = namespace(l=[1]) %}{% set x = q.l %}{{ x.append(1) }}"),
              HasSubstr("access to attribute 'append' of 'list' object is unsafe"));
  EXPECT_THAT(failure_of("{{ people.append(1) }}"),
              HasSubstr("access to attribute 'append' of 'list' object is unsafe"));
  EXPECT_THAT(failure_of("{{ people[0].update({}) }}"), HasSubstr("is unsafe"));
}

// A twentieth of the usual, so that a sanitized build is quick as well.
constexpr Limits kFewSteps{.steps = 1'000'000};

TEST(JinjaBounds, StopEndlessWorkQuickly) {
  const std::vector<std::string_view> sources = {
      "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% "
      "endfor %}{% endfor %}",
      "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
      "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
      "{{ 'a' * 99999999999 }}",
      "{{ [1] * 99999999999 }}",
      "{{ ('a' * 1000000) * 1000000 }}",
      "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
      "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ "
      "ns.x }}",
      "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ "
      "ns.x == [ns.x] }}{{ ns.x | tojson }}",
      "{% set ns = namespace(x=[]) %}{% for i in range(9999) %}{% set ns.x = [ns.x] %}{% endfor %}",
      "{% for i in range(99999) %}{{ 'a' * 99999 }}{% endfor %}",
      "{{ 'a'.center(99999999999) }}",
      "{{ '%99999999d' % 1 }}",
      "{{ 'x' | indent(99999999999) }}",
      "{{ range(99999999) }}",
      "{{ 'ab' | replace('', 'x' * 60000000) }}",
      "{% set t = 'a' * 3000000 %}{% for i in range(99999) %}{{ (t ~ 'b') in (t ~ t) }}{% endfor %}",
      "{% set t = 'a' * 3000000 %}{{ (t ~ t).rfind(t ~ 'b') }}{{ (t ~ t).rfind(t ~ 'b') }}",
      "{{ [1, 2] | batch(99999999999, 0) | list }}",
      "{% set d = {((1, 2) * 9999,): 1} %}{% set k = ((1, 2) * 9999,) %}{% for i in range(99999) %}{{ k in d "
      "}}{% endfor %}",
      "{% set ns = namespace(a=range(99999) | list) %}{% for i in range(9999) %}{% set ns.a = ns.a + ns.a "
      "%}{% endfor %}",
  };
  for (const std::string_view source : sources) {
    const auto start = std::chrono::steady_clock::now();
    EXPECT_THAT(failure_of(source, kFewSteps), HasSubstr("line 1: ")) << source;
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20)) << source;
  }
}

TEST(JinjaBounds, StopDeepNestingInTheSource) {
  const auto repeat = [](std::string_view text, size_t count) {
    std::string out;
    for (size_t i = 0; i < count; ++i) out += text;
    return out;
  };
  const size_t many = 30'000;
  for (const std::string& source :
       {"{{ " + repeat("(", many), "{{ " + repeat("[", many), "{{ " + repeat("-", many) + "1 }}",
        "{{ " + repeat("not ", many) + "1 }}", "{{ 1" + repeat(" + 1", many) + " }}",
        "{{ x" + repeat(".x", many) + " }}", "{{ x" + repeat("|e", many) + " }}", repeat("{% if 1 %}", many),
        repeat("{% for x in y %}", many), "{{ x" + repeat(" if x else x", many) + " }}",
        "{% set " + repeat("(", many), "{{ x" + repeat(" is defined", many) + "}}",
        "{{ 1" + repeat("**1", many) + " }}", repeat("{% macro a() %}", many)}) {
    EXPECT_THAT(failure_of(source), HasSubstr("line 1: ")) << source.substr(0, 40);
  }
}

TEST(JinjaBounds, LookupsPayForWhatTheySearch) {
  std::string source;
  for (int i = 0; i < 20'000; ++i) source += fmt::format("{{% set v{} = 1 %}}", i);
  source += "{% for a in range(99999) %}{% for b in range(99999) %}{{ v19999 }}{% endfor %}{% endfor %}";
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THAT(failure_of(source, kFewSteps), HasSubstr("steps"));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
  const std::string name(100'000, 'n');
  EXPECT_THAT(failure_of("{% for a in range(99999) %}{{ " + name + " }}{{ bos." + name + " }}{% endfor %}",
                         kFewSteps),
              HasSubstr("steps"));
}

TEST(JinjaBounds, RangesPayForTheirNumbers) {
  EXPECT_THAT(failure_of("{{ range(9999) is none }}", {.steps = 5000}), HasSubstr("steps"));
  EXPECT_EQ(
      render("{{ range(9999) | length }} {{ range(0, -100000, -1) | length }} {{ range(5, 5) | list }}"),
      "9999 100000 []");
  EXPECT_THAT(failure_of("{{ range(100001) }}"), HasSubstr("Range too big"));
}

TEST(JinjaBounds, RangesEndWhereNumbersDo) {
  EXPECT_EQ(render("{{ range(9223372036854775806, 9223372036854775807, 5) | list }}"
                   "{{ range(-9223372036854775807 - 1, 9223372036854775807, 9223372036854775807) | list }}"),
            "[9223372036854775806][-9223372036854775808, -1, 9223372036854775806]");
}

TEST(JinjaBounds, LetLongButFlatTemplatesPass) {
  std::string source = "{{ ''";
  for (int i = 0; i < 5000; ++i) source += " ~ 'a'";
  source += " }}{% if false %}";
  for (int i = 0; i < 2000; ++i) source += "{% elif false %}";
  source += "{% endif %}";
  EXPECT_EQ(render(source).size(), 5000u);
}

TEST(JinjaBounds, CountOnlyWhatIsAlive) {
  const Limits limits{.bytes = size_t(1) << 20};
  const Template program("{% for i in range(100) %}{% set t = 'a' * 500000 %}{{ t | length }},{% endfor %}");
  EXPECT_THAT(program.render({}, limits).text, HasSubstr("500000,500000,"));
}

TEST(JinjaBounds, FreeNamespacesThatHoldEachOther) {
  // The address sanitizer tells if they are not.
  EXPECT_EQ(
      render(
          "{% set a = namespace() %}{% set b = namespace(a=a) %}{% set a.b = b %}{% set a.l = [a, b] %}"
          "{% macro m() %}{% macro n() %}{% endmacro %}{% set a.n = n %}{% endmacro %}{{ m() }}{{ a.n() }}x"),
      "x");
}

TEST(JinjaBounds, HoldForWhatTheFuzzerFound) {
  size_t inputs = 0;
  for (const auto& entry : std::filesystem::directory_iterator(QUIRE_SOURCE_DIR "/tests/corpus/jinja")) {
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string source{std::istreambuf_iterator<char>(file), {}};
    const auto start = std::chrono::steady_clock::now();
    failure_of(source, kFewSteps);
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10)) << entry.path();
    ++inputs;
  }
  EXPECT_GT(inputs, 0u);
}

}  // namespace
}  // namespace quire::jinja
