#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "text/jinja/jinja_case.h"

namespace quire::jinja {
namespace {

TEST(JinjaWhitespace, FollowsTrimBlocksAndLstripBlocks) {
  expect_all({
      {"a\n{% if true %}\n  b\n{% endif %}\nc\n", "a\n  b\nc"},
      {"a\n  {% if true %}\n  b\n  {% endif %}\nc", "a\n  b\nc"},
      {"a  {% if true %}b{% endif %}", "a  b"},
      {"  {%- if true -%}  \n  b \n {%- endif -%} \n c", "bc"},
      {"a\n {%+ if true %}b{% endif +%}\nc", "a\n b\nc"},
      {"x\n   {# c #}\ny", "x\ny"},
      {"{{ 1 }}\n{{ 2 }}\n\n", "1\n2\n"},
      {"  {{ 1 -}}  \n b {{- 2 }}", "  1b2"},
      {"\r\na\r\n{% if 1 %}\r\nb\r{% endif %}\rc", "\na\nb\nc"},
  });
}

TEST(JinjaWhitespace, LeavesRawBlocksAndLoneBracesAlone) {
  expect_all({
      {"{% raw %}{{ x }} {% if %}{% endraw %}", "{{ x }} {% if %}"},
      {"a {%- raw -%} x {%- endraw -%} b", "axb"},
      {"{ { } %} }}", "{ { } %} }}"},
      {"{{ '}}' }}{% set x = '%}' %}{{ x }}", "}}%}"},
      {"{{ {'a': {'b': 1}}['a'] }}", "{'b': 1}"},
  });
}

TEST(JinjaValues, PrintAsPythonPrintsThem) {
  expect_all({
      {"{{ true }} {{ none }} {{ nope }}|", "True None |"},
      {"{{ 1.0 }} {{ 1e16 }} {{ 1e15 }} {{ 0.0001 }} {{ 0.00001 }} {{ 1/3 }}",
       "1.0 1e+16 1000000000000000.0 0.0001 1e-05 0.3333333333333333"},
      {"{{ [1, 'a', none, {'k': [1.5]}, (1,), ()] }}", "[1, 'a', None, {'k': [1.5]}, (1,), ()]"},
      {R"({{ ["it's", 'a"b', '\n\\', 'é'] }})", R"(["it's", 'a"b', '\n\\', 'é'])"},
      {"{{ 1, 2 }} {{ {'a': 1}.items() }}", "(1, 2) dict_items([('a', 1)])"},
  });
}

TEST(JinjaExpressions, CountAsPythonCounts) {
  expect_all({
      {"{{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 2 ** 10 }} {{ 2 ** -1 }}",
       "3 -4 2 -2 1024 0.5"},
      {"{{ 2 + 3 * 4 }} {{ (2 + 3) * 4 }} {{ 10 - 2 - 3 }} {{ 1 ~ 2 * 3 }}", "14 20 5 16"},
      {"{{ 'a' * 3 }} {{ [1] + [2] }} {{ 'a' ~ 1 ~ none }}", "aaa [1, 2] a1None"},
      {"{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 1 == 1.0 }} {{ (1,) == [1] }}", "True False True False"},
      {"{{ 'a' in 'abc' }} {{ 3 not in [1, 2] }} {{ 'k' in {'k': 0} }}", "True True True"},
      {"{{ 'x' if false }}|{{ 'a' if false else 'b' if true else 'c' }} {{ 0 or '' or 'z' }} {{ 1 and 'y' }}",
       "|b z y"},
      {"{{ 0x1F }} {{ 1_000 }} {{ 'a' 'b' }} {{ \"\\x41\\u00e9\\q\" }}", "31 1000 ab Aé\\q"},
  });
}

TEST(JinjaExpressions, SliceByCharactersInBothDirections) {
  expect_all({
      {"{{ word[1] }}{{ word[-1] }} {{ word[::-1] }} {{ word[4:] }} {{ word[:-3:2] }}",
       "t本 本日 été 日本 éé"},
      {"{{ [1,2,3,4][::-1] }} {{ [1,2,3,4][1:3] }} {{ [1,2,3][10:] }} {{ 'abcdef'[4:1:-1] }}",
       "[4, 3, 2, 1] [2, 3] [] edc"},
      {"{{ people[::-1][0].name }} {{ people[1:][0]['name'] }}", "bob bob"},
  });
}

TEST(JinjaExpressions, FormatStringsBothWays) {
  expect_all({
      {"{{ '%s-%d-%5.2f-%r-%%' % ('a', 3, 2.5, 'x') }}", "a-3- 2.50-'x'-%"},
      {"{{ '%05d|%-5s|%x' % (42, 'a', 255) }} {{ '%(k)s' % {'k': 1} }}", "00042|a    |ff 1"},
      {"{{ '{} {1} {n:>4}|{f:.2f}|{t:,}'.format(1, 2, n='x', f=3.14159, t=1234567) }}",
       "1 2    x|3.14|1,234,567"},
  });
}

TEST(JinjaStatements, KeepTheirScopes) {
  expect_all({
      {"{% set x = 1 %}{% for i in [1, 2] %}{% set x = x + i %}{{ x }}{% endfor %}{{ x }}", "231"},
      {"{% if true %}{% set y = 5 %}{% endif %}{{ y }}", "5"},
      {"{% set q = namespace(l=[1]) %}{% set x = q.l.append(2) %}{{ x }}{{ q.l.pop(0) }}{{ q.l }}",
       "None1[2]"},
      {"{{ {'a': 1}[nope] is defined }}{{ [1][nope] }}", "False"},
      {"{% set ns = namespace(n=0) %}{% for i in [1, 2] %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}",
       "3"},
      {"{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a }}", "3"},
      {"{% set a, b = 1, 2 %}{{ b }}{{ a }}", "21"},
      {"{% set t %}a {{ 1 }}{% endset %}[{{ t }}]{% set t | upper %}b{% endset %}{{ t }}", "[a 1]B"},
      {"{% filter upper %}abc{{ 'd' }}{% endfilter %}", "ABCD"},
      {"{% generation %}x{% set q = 1 %}{% endgeneration %}{{ q is defined }}", "xFalse"},
  });
}

TEST(JinjaStatements, LoopInAllWays) {
  expect_all({
      {"{% for i in 'ab' %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}"
       "{{ loop.revindex }}{{ loop.previtem }}{{ loop.nextitem }};{% endfor %}",
       "10TrueFalse22b;21FalseTrue21a;"},
      {"{% for i in [] %}x{% else %}empty{% endfor %}", "empty"},
      {"{% for i in range(6) if i % 2 %}{{ loop.index }}:{{ i }} {% endfor %}", "1:1 2:3 3:5 "},
      {"{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 4 %}{% break %}{% endif "
       "%}{{ i }}{% endfor %}",
       "013"},
      {"{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %}{% for (a, b), c in [((1, 2), 3)] %}{{ a "
       "}}{{ b }}{{ c }}{% endfor %}",
       "a1123"},
      {"{% for x in [1, [2, [3]]] recursive %}{% if x is iterable %}({{ loop(x) }}){% else %}{{ x }}@{{ "
       "loop.depth }}{% endif %}{% endfor %}",
       "1@1(2@2(3@3))"},
      {"{% for i in [1, 1, 2] %}{{ loop.changed(i) }}{{ loop.cycle('a', 'b') }} {% endfor %}",
       "Truea Falseb Truea "},
  });
}

TEST(JinjaStatements, CallMacros) {
  expect_all({
      {"{% macro m(a, b=2, c='x') %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }} {{ m(1, c=3) }} {{ m(*[7, "
       "8]) }} {{ m(**{'a': 9}) }}",
       "12x 123 78x 92x"},
      {"{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, x=3) }}", "(1, 2){'x': 3}"},
      {"{% macro m(x) %}<{{ caller(x) }}>{% endmacro %}{% call(y) m(5) %}[{{ y }}]{% endcall %}", "<[5]>"},
      {"{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}", "3210"},
      {"{% set g = 1 %}{% macro m() %}{{ g }}{% endmacro %}{% set g = 2 %}{{ m() }}", "2"},
      {"{% for i in [1, 2] %}{% macro m() %}{{ i }}{% endmacro %}{{ m() }}{% endfor %}", "12"},
  });
}

TEST(JinjaFilters, ChangeText) {
  expect_all({
      {"{{ 'aé' | upper }} {{ 'ABC' | lower }} {{ \"it's a-b\" | title }} {{ \"it's\".title() }} {{ 'hELLO' "
       "| capitalize }}",
       "AÉ abc It's A-B It'S Hello"},
      {"{{ ' a ' | trim }}|{{ 'xxaxx' | trim('x') }}|{{ 'aaa' | replace('a', 'b', 2) }}", "a|a|bba"},
      {"{{ 'a\nb\n\nc' | indent(2) }}|{{ 'a\nb' | indent(1, true) }}", "a\n  b\n\n  c| a\n b"},
      {"{{ '42' | int }} {{ '4.7' | int }} {{ 'x' | int(7) }} {{ '4.5' | float }} {{ -3 | abs }} {{ 2.5 | "
       "round }} {{ 42.55 | round(1) }}",
       "42 4 7 4.5 3 2.0 42.5"},
      {"{{ nope | default('d') }} {{ '' | default('d') }}|{{ '' | d('e', true) }}", "d |e"},
      {"{{ '<a>' | e }} {{ '<b>' + ('<a>' | safe) }} {{ '<b>' ~ ('<a>' | safe) }}",
       "&lt;a&gt; &lt;b&gt;<a> <b><a>"},
  });
}

TEST(JinjaFilters, WorkOnLists) {
  expect_all({
      {"{{ ['b', 'A'] | sort }} {{ [3, 1] | sort(reverse=true) }} {{ people | sort(attribute='age') | "
       "map(attribute='name') | list }}",
       "['A', 'b'] [3, 1] ['bob', 'Ann']"},
      {"{{ [1, 2, 3, 4] | select('odd') | list }} {{ [0, 1] | reject | list }} {{ people | selectattr('age', "
       "'gt', 20) | map(attribute='name') | join }}",
       "[1, 3] [0] Ann"},
      {"{{ people | rejectattr('name', 'equalto', 'bob') | list | length }} {{ ['a'] | map('upper') | "
       "join('-') }} {{ none | map('upper') | list }}",
       "1 A []"},
      {"{{ [1, 2] | first }}{{ [1, 2] | last }}{{ [] | first }} {{ word | length }} {{ {'a': 1} | count }} "
       "{{ [1, 2] | sum }} {{ [2, 1] | min }}{{ [2, 1] | max }}",
       "12 6 1 3 12"},
      {"{{ {'b': 1, 'a': 2} | dictsort }} {{ {'a': 1} | items | list }} {{ ['a', 'A', 'b'] | unique | list "
       "}} {{ [1, 2] | reverse | list }} {{ 'ab' | reverse }}",
       "[('a', 2), ('b', 1)] [('a', 1)] ['a', 'b'] [2, 1] ba"},
      {"{{ [1, 2, 3] | batch(2) | list }} {{ [1, 2, 3] | slice(2) | list }}", "[[1, 2], [3]] [[1, 2], [3]]"},
      {"{% for k, members in [{'t': 'a'}, {'t': 'b'}, {'t': 'a'}] | groupby('t') %}{{ k }}{{ members | "
       "length }}{% endfor %}",
       "a2b1"},
  });
}

TEST(JinjaFilters, WriteJsonAsTransformersDoes) {
  expect_all({
      {R"({{ {'a': [1, {'b': none}], 'c': "é<>&'\"\n"} | tojson }})",
       R"({"a": [1, {"b": null}], "c": "é<>&'\"\n"})"},
      {"{{ {'b': 1, 'a': []} | tojson(indent=2) }}", "{\n  \"b\": 1,\n  \"a\": []\n}"},
      {"{{ {'b': 1.0, 'a': true} | tojson(sort_keys=true) }}", R"({"a": true, "b": 1.0})"},
      {"{{ [1, (2, 3)] | tojson(separators=(',', ':')) }} {{ 'é🎉' | tojson(ensure_ascii=true) }}",
       R"([1,[2,3]] "\u00e9\ud83c\udf89")"},
  });
}

TEST(JinjaMethods, AreThoseOfPython) {
  expect_all({
      {"{{ 'a,b,c'.split(',', 1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ ' a  b '.split() }} {{ ''.split(',') }}",
       "['a', 'b,c'] ['a,b', 'c'] ['a', 'b'] ['']"},
      {"{{ ' ab '.strip() }}|{{ 'xyaxy'.rstrip('xy') }}|{{ 'a\nb'.splitlines() }}|{{ 'a=b'.partition('=') }}",
       "ab|xya|['a', 'b']|('a', '=', 'b')"},
      {"{{ 'abc'.startswith(('x', 'a')) }} {{ word.find('日') }} {{ 'abcb'.rfind('b') }} {{ "
       "'abc'.replace('', '-') }}",
       "True 4 3 -a-b-c-"},
      {"{{ {'a': 1}.get('b', 2) }} {{ {'items': 5}['items'] }} {{ {'a': 1}.keys() | list }} {{ [1, "
       "2].index(2) }} {{ '12'.isdigit() }}",
       "2 5 ['a'] 1 True"},
  });
}

TEST(JinjaTests, TellValuesApart) {
  expect_all({
      {"{{ nope is defined }} {{ none is none }} {{ 'a' is string }} {{ {} is mapping }} {{ 'a' is sequence "
       "}} {{ 1 is iterable }}",
       "False True True True True False"},
      {"{{ true is integer }} {{ true is number }} {{ 1.5 is float }} {{ 1 is true }} {{ false is false }} "
       "{{ true is boolean }}",
       "False True True False True True"},
      {"{{ 4 is divisibleby 2 }} {{ 3 is odd }} {{ 1 is in [1] }} {{ 1 is not string }} {{ 2 is gt 1 }} {{ "
       "range is callable }}",
       "True True True True True True"},
  });
}

TEST(JinjaProvenance, FollowsTextThroughEveryOperation) {
  const std::vector<JinjaCase> cases = {
      {"<{{ user }}>", "<«Ann»>"},
      {"{{ bos + user + '!' }}", "<s>«Ann»!"},
      {"{{ '[' ~ user ~ ']' }}", "[«Ann»]"},
      {"{{ ('[' + user + ']')[1:3] }}", "«An»"},
      {"{{ ('[' + user + ']')[::-1] }}", "]«nnA»["},
      {"{{ (' ' + user + ' ').strip() }}", "«Ann»"},
      {"{{ ('a,' + user).split(',') | join('|') }}", "a|«Ann»"},
      {"{{ user.replace('n', '<n>') }}", "«A»<n><n>"},
      {"{{ 'Hi X' | replace('X', user) }}", "Hi «Ann»"},
      {"{{ [user, 'x', user] | join('-') }}", "«Ann»-x-«Ann»"},
      {"{{ ('<' + user) | upper }}", "«<ANN»"},
      {"{{ {'a': user} | tojson }}", "«{\"a\": \"Ann\"}»"},
      {"{{ {'a': 'b'} | tojson }}", "{\"a\": \"b\"}"},
      {"{{ [user] }}", "«['Ann']»"},
      {"{{ '%s and %s' % (user, 'me') }}", "«Ann» and me"},
      {"{{ '{}: {}'.format('name', user) }}", "name: «Ann»"},
      {"{{ (user ~ '\n' ~ 'b') | indent(2) }}", "«Ann»\n  b"},
      {"{% set t %}<{{ user }}>{% endset %}{{ t * 2 }}", "<«Ann»><«Ann»>"},
      {"{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m(user) }}{{ m('t') }}", "<«Ann»><t>"},
      {"{% for c in user %}{{ c }}{% endfor %}", "«Ann»"},
      {"{% filter trim %} {{ user }} {% endfilter %}", "«Ann»"},
      {"{{ people | map(attribute='name') | join(', ') }}", "«Ann», «bob»"},
      {"{{ '<a>' + (user | safe) }}", "&lt;a&gt;«Ann»"},
      {"{{ user | length }}{{ user | default('x') }}{{ nope | default('x') }}", "3«Ann»x"},
  };
  for (const JinjaCase& each : cases) EXPECT_EQ(marked(each.source), each.expected) << each.source;
}

TEST(JinjaGlobals, KnowTheDate) {
  EXPECT_THAT(render("{{ strftime_now('%Y-%m-%d') }}"),
              testing::MatchesRegex("20[0-9][0-9]-[0-9][0-9]-[0-9][0-9]"));
}

}  // namespace
}  // namespace quire::jinja
