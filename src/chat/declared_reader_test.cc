#include "chat/declared_reader.h"

#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/mapped_file.h"
#include "chat/chat_format.h"

namespace quire {
namespace {

using testing::HasSubstr;

WholeOutput whole_of(const OutputEvents& events) {
  WholeOutput output;
  for (const OutputEvent& event : events) output.add(event);
  return output;
}

WholeOutput read(const DeclaredForm& form, const OrderedJson& tools, const std::string& begun,
                 const std::string& text, std::mt19937* random = nullptr) {
  DeclaredReader reader(form, ArgumentTypes(tools), true, begun);
  OutputEvents events;
  for (size_t at = 0; at < text.size();) {
    const size_t bytes = random == nullptr ? text.size() : 1 + (*random)() % 9;
    reader.push(std::string_view(text).substr(at, bytes), events);
    at += bytes;
  }
  reader.finish(events);
  return whole_of(events);
}

// Numbers are equal by their value: what was a float there is one here.
OrderedJson calls_of(const WholeOutput& output) {
  OrderedJson calls = OrderedJson::array();
  for (const ToolCall& call : output.calls)
    calls.push_back(OrderedJson::array({call.name, parse_ordered_json(call.arguments, "arguments")}));
  return calls;
}

TEST(DeclaredReader, ReadsWhatTransformersReads) {
  const MappedFile file(QUIRE_SOURCE_DIR "/tests/response_templates.json");
  const OrderedJson all = parse_ordered_json(
      {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()}, "the fixture");
  std::mt19937 random(3);
  size_t cases = 0, calls = 0;
  for (const OrderedJson& one : all) {
    const DeclaredForm form = read_declared_form(one["template"].dump());
    SCOPED_TRACE(one["name"].get<std::string>());
    for (const OrderedJson& wanted : one["cases"]) {
      const auto begun = wanted["begun"].get<std::string>(), text = wanted["output"].get<std::string>();
      SCOPED_TRACE(text);
      EXPECT_EQ(form.begun("Hi." + one["start"].get<std::string>() + begun), begun);
      const WholeOutput output = read(form, one["tools"], begun, text);
      EXPECT_EQ(output.text, wanted["content"]);
      EXPECT_EQ(output.reasoning, wanted["reasoning"]);
      const Json got(calls_of(output)), expected(wanted["calls"]);
      EXPECT_EQ(got, expected);
      ++cases;
      calls += output.calls.size();
      for (int i = 0; i < 8; ++i) {
        const WholeOutput cut = read(form, one["tools"], begun, text, &random);
        EXPECT_EQ(cut.text, output.text);
        EXPECT_EQ(cut.reasoning, output.reasoning);
        EXPECT_EQ(cut.calls, output.calls);
      }
    }
  }
  EXPECT_GT(cases, 700u);
  EXPECT_GT(calls, 500u);
}

constexpr const char* kJson = R"({"start_anchor": "A:", "fields": {
  "reasoning": {"open": "<think>", "close": "</think>"},
  "tool_calls": {"open": "<call>", "close": "</call>", "repeats": true, "content": "json"}, "content": {}}})";

TEST(DeclaredReader, ACallThatCannotBeParsedIsText) {
  const DeclaredForm form = read_declared_form(kJson);
  const WholeOutput output =
      read(form, {}, "", "Well <call>{\"name\": }</call> <call>{\"name\": \"f\", \"arguments\": {}}</call>");
  EXPECT_THAT(output.text, HasSubstr("<call>{\"name\": }</call>"));
  ASSERT_EQ(output.calls.size(), 1u);
  EXPECT_EQ(output.calls[0].name, "f");
  EXPECT_EQ(read(form, {}, "", "<call>[5]</call>").text, "<call>[5]</call>");
}

TEST(DeclaredReader, WithoutToolsCallsAreText) {
  const DeclaredForm form = read_declared_form(kJson);
  const std::string text = "<call>{\"name\": \"f\"}</call>";
  DeclaredReader reader(form, {}, false, "");
  OutputEvents events;
  reader.push(text, events);
  reader.finish(events);
  EXPECT_EQ(whole_of(events).text, text);
}

TEST(DeclaredReader, ThePromptMayHaveBegunTheAnswer) {
  const DeclaredForm form = read_declared_form(kJson);
  EXPECT_EQ(form.begun("A: A:<think>\n"), "<think>\n");
  EXPECT_EQ(form.begun("none"), "");
  const WholeOutput output = read(form, {}, "<think>\n", "Hm.\n</think>\n\nYes.");
  EXPECT_EQ(output.reasoning, "Hm.");
  EXPECT_EQ(output.text, "Yes.");
}

TEST(DeclaredReader, WhatCannotBeUsedIsRefusedInASentence) {
  const auto problem = [](const std::string& json) {
    try {
      read_declared_form(json);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const auto field = [](const std::string& said) {
    return R"({"start_anchor": "A", "fields": {"content": {}, "tool_calls": )" + said + "}}";
  };
  EXPECT_THAT(problem("[]"), HasSubstr("object"));
  EXPECT_THAT(problem(R"({"version": 2, "fields": {"content": {}}, "start_anchor": "A"})"),
              HasSubstr("version 2"));
  EXPECT_THAT(problem(R"({"fields": {"content": {}}})"), HasSubstr("start_anchor"));
  EXPECT_THAT(problem(R"({"fields": {}, "start_anchor": "A"})"), HasSubstr("1 to 16"));
  EXPECT_THAT(problem(R"({"fields": {"content": {}, "image": {"open": "<i>"}}, "start_anchor": "A"})"),
              HasSubstr("'image': answers have no place"));
  EXPECT_THAT(problem(R"({"fields": {"content": {}, "reasoning": {}}, "start_anchor": "A"})"),
              HasSubstr("two of its fields"));
  EXPECT_THAT(problem(field(R"({"open": "<c>", "shape": 1})")), HasSubstr("'shape'"));
  EXPECT_THAT(problem(field(R"({"open": "<c>", "open_pattern": "<c>"})")), HasSubstr("both"));
  EXPECT_THAT(problem(field(R"({"open_pattern": "(<c>"})")), HasSubstr("cannot be used"));
  EXPECT_THAT(problem(field(R"({"open_pattern": "x*"})")), HasSubstr("nothing at all"));
  EXPECT_THAT(problem(field(R"({"open": ""})")), HasSubstr("1 to"));
  EXPECT_THAT(problem(field(R"({"open": "<c>", "content": "yaml"})")), HasSubstr("'yaml'"));
  EXPECT_THAT(problem(field(R"({"open": "<c>", "content": "xml-inline"})")), HasSubstr("tag_pattern"));
  EXPECT_THAT(problem(field(R"({"open": "<c>", "transform": {"name": "f-{name}"}})")), HasSubstr("mixes"));
  std::string deep = R"({"name": "kv-lines"})";
  for (int i = 0; i < 20; ++i) deep = R"({"name": "kv-lines", "args": {"value_parser": )" + deep + "}}";
  EXPECT_THAT(problem(field(R"({"open": "<c>", "content": "kv-lines", "content_args": {"value_parser": )" +
                            deep + "}}")),
              HasSubstr("too deeply"));
  EXPECT_THAT(problem(field(R"({"open_pattern": ")" + std::string(5000, 'x') + R"("})")),
              HasSubstr("5000 bytes"));
}

TEST(DeclaredReader, HostilePatternsAndTextsTakeBoundedTime) {
  const DeclaredForm form = read_declared_form(R"q({"start_anchor": "A", "fields": {
    "reasoning": {"open_pattern": "<(a|a|aa)*>", "close_pattern": "(x+x+)+y"},
    "tool_calls": {"open": "<call>", "close": "</call>", "content": "xml-inline",
                   "content_args": {"tag_pattern": "(?P<key>(a+)+)b(?P<value>.*)"}}, "content": {}}})q");
  const std::string open = "<" + std::string(3000, 'a'), run(3000, 'x');
  EXPECT_EQ(read(form, {}, "", open).text, open);
  EXPECT_EQ(read(form, {}, "", "<>" + run).reasoning, run);
  const std::string call = "<call>" + std::string(20000, 'a') + "</call>";
  EXPECT_EQ(read(form, {}, "", call).text, call);
  std::string many;
  for (int i = 0; i < 20000; ++i) many += "<call>";
  EXPECT_EQ(read(read_declared_form(kJson), {}, "", many).text, many);
}

TEST(DeclaredReader, ATemplateOfTheModelsOwnIsPreferred) {
  const std::string source = "{% for m in messages %}<s>{{ m.role }}:{{ m.content }}</s>{% endfor %}A:";
  const auto traits = [&](const std::string& response) {
    return find_traits(ChatTemplate({.usual = source, .tool_use = {}, .response = response}, {}));
  };
  EXPECT_EQ(traits("").response.source, ResponseTemplate::Source::generic);
  const TemplateTraits own = traits(kJson);
  EXPECT_EQ(own.response.source, ResponseTemplate::Source::declared);
  EXPECT_EQ(own.declared_problem, "");
  EXPECT_EQ(parse_response(own.response, {}, "<call>{\"name\": \"f\"}</call>").calls.size(), 1u);
  const TemplateTraits broken = traits(R"({"fields": 5})");
  EXPECT_EQ(broken.response.source, ResponseTemplate::Source::generic);
  EXPECT_THAT(broken.declared_problem, HasSubstr("fields"));
}

}  // namespace
}  // namespace quire
