#include "chat/response_parser.h"

#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "chat/chat_format.h"
#include "chat/template_case.h"

namespace quire {
namespace {

const std::string kTools = R"([{"type": "function", "function": {"name": "weather", "description": "Tells.",
  "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"},
  "exact": {"type": "boolean"}, "units": {"type": "array"}, "note": {"type": "string"}}}}}])";

OrderedJson tools() {
  return parse_ordered_json(kTools, "test data");
}

ChatTemplate chat_template(const TemplateCase& one) {
  return ChatTemplate(one.source(), {.bos_token = "<s>", .eos_token = "</s>"});
}

ResponseOptions options(ResponseStart start = {}) {
  return {.start = std::move(start), .types = ArgumentTypes(tools())};
}

WholeOutput in_pieces(const ResponseTemplate& form, const ResponseOptions& asked, const std::string& text,
                      std::mt19937& random) {
  ResponseParser parser(form, asked);
  OutputEvents events;
  for (size_t at = 0; at < text.size();) {
    const size_t bytes = std::min<size_t>(text.size() - at, 1 + random() % 7);
    parser.push(text.substr(at, bytes), events);
    at += bytes;
  }
  parser.finish(events);
  WholeOutput output;
  for (const OutputEvent& event : events) output.add(event);
  return output;
}

// The same whole and in pieces.
WholeOutput parse(const ResponseTemplate& form, const ResponseOptions& asked, const std::string& text) {
  const WholeOutput whole = parse_response(form, asked, text);
  std::mt19937 random(7);
  for (int i = 0; i < 20; ++i) {
    const WholeOutput output = in_pieces(form, asked, text, random);
    EXPECT_EQ(output.text, whole.text) << text;
    EXPECT_EQ(output.reasoning, whole.reasoning) << text;
    EXPECT_EQ(output.calls, whole.calls) << text;
  }
  return whole;
}

OrderedJson arguments() {
  return parse_ordered_json(
      R"({"city": "Zürich \"old\" town", "days": 3, "exact": true, "units": ["°C", {"a": null}],
    "note": "if (a < b) { return \"</x>\"; }\n<b>5</b>\n"})",
      "test data");
}

OrderedJson message(uint32_t calls) {
  OrderedJson said = {
      {"role", "assistant"}, {"content", "Let me see."}, {"reasoning_content", "They ask.\nI look."}};
  said["tool_calls"] = OrderedJson::array();
  for (uint32_t i = 0; i < calls; ++i) {
    OrderedJson function = {{"name", "weather"}};
    function["arguments"] = arguments();
    OrderedJson call = {{"id", "functions.weather:" + std::to_string(i)}, {"type", "function"}};
    call["function"] = std::move(function);
    said["tool_calls"].push_back(std::move(call));
  }
  return said;
}

struct RoundTrip {
  std::string output;
  WholeOutput parsed;
};

// Renders an answer, takes from it what the model would have written, and reads that.
RoundTrip round_trip(const TemplateCase& one, OrderedJson said) {
  const ChatTemplate source = chat_template(one);
  const ChatFormat format(source);
  ChatInput chat;
  chat.messages = OrderedJson::array({{{"role", "user"}, {"content", "Weather?"}}});
  chat.tools = tools();
  const MarkedText prompt = source.render(format.adapted(chat));
  chat.messages.push_back(std::move(said));
  chat.add_generation_prompt = false;
  std::string all = source.render(format.adapted(chat)).text;
  EXPECT_TRUE(all.starts_with(prompt.text)) << one.name << "\n" << prompt.text << "\n" << all;
  all.erase(0, prompt.text.size());
  const std::string end(one.close);
  EXPECT_TRUE(all.ends_with(end));
  all.resize(all.size() - end.size());
  return {all, parse(format.traits().response, options(format.start_after(prompt)), all)};
}

TEST(ResponseParser, ReadsBackWhatTheTemplatesOfTheFamiliesWrite) {
  for (const TemplateCase& one : kTemplateCases) {
    SCOPED_TRACE(one.name);
    const bool bare = one.name == "one call, bare";
    for (const uint32_t calls : {1u, 2u}) {
      if (bare && calls > 1) continue;
      OrderedJson said = message(calls);
      if (bare) said["content"] = "";
      const auto [output, parsed] = round_trip(one, said);
      SCOPED_TRACE(output);
      EXPECT_EQ(parsed.text, bare ? "" : "Let me see.");
      EXPECT_EQ(parsed.reasoning, "They ask.\nI look.");
      ASSERT_EQ(parsed.calls.size(), calls);
      for (const ToolCall& call : parsed.calls) {
        EXPECT_EQ(call.name, "weather");
        EXPECT_EQ(parse_ordered_json(call.arguments, "arguments"), arguments());
      }
    }
  }
}

TEST(ResponseParser, FormsAreDerivedFromTheTemplateAlone) {
  for (const TemplateCase& one : kTemplateCases) {
    SCOPED_TRACE(one.name);
    const TemplateTraits traits = find_traits(chat_template(one));
    EXPECT_TRUE(traits.lists_tools);
    EXPECT_TRUE(traits.writes_calls);
    EXPECT_TRUE(traits.writes_results);
    EXPECT_EQ(traits.response.source, ResponseTemplate::Source::derived);
  }
}

TEST(ResponseParser, ACallThatIsNotFinishedIsText) {
  for (const TemplateCase& one : kTemplateCases) {
    if (one.name == "one call, bare") continue;
    SCOPED_TRACE(one.name);
    const ChatTemplate source = chat_template(one);
    const ResponseTemplate form = find_traits(source).response;
    const RoundTrip whole = round_trip(one, message(1));
    const size_t begin = whole.output.find("Let me see.");
    ASSERT_NE(begin, std::string::npos);
    const std::string said = whole.output.substr(begin);
    for (size_t bytes = 0; bytes < said.size(); ++bytes) {
      const WholeOutput cut = parse_response(form, options(), said.substr(0, bytes));
      if (!cut.calls.empty()) continue;  // only what closes the section is missing
      std::string text = said.substr(0, bytes);
      while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
      std::string got = cut.text;
      while (!got.empty() && (got.back() == '\n' || got.back() == ' ')) got.pop_back();
      EXPECT_EQ(got, text);
    }
  }
}

ResponseTemplate hermes() {
  ResponseTemplate form;
  form.reasoning = {{"<think>", "</think>"}};
  form.calls = {hermes_form()};
  return form;
}

TEST(ResponseParser, PlainTextStaysAsItIs) {
  for (const std::string text : {"", " ", "Hello", "  Two  spaces \n\n", "a < b, <tool_cal", "{\"name\": 5}",
                                 "[1, 2]", "<tool_call>no</tool_call> x", "Größe 3 € <|nothing|>\n"})
    EXPECT_EQ(parse(hermes(), options(), text).text, text);
}

TEST(ResponseParser, APromptMayOpenTheReasoning) {
  const WholeOutput output = parse(hermes(), options({.reasoning = 0}), "\nHm.\n</think>\n\nYes.\n");
  EXPECT_EQ(output.reasoning, "Hm.");
  EXPECT_EQ(output.text, "Yes.");
  EXPECT_EQ(parse(hermes(), options({.reasoning = 0}), "It never ends ").reasoning, "It never ends");
}

TEST(ResponseParser, ABareEndOfReasoningAtTheBeginningSaysNothing) {
  EXPECT_EQ(parse(hermes(), options(), "\n</think>\n\nYes").text, "Yes");
  EXPECT_EQ(parse(hermes(), options(), "A </think> B").text, "A </think> B");
}

TEST(ResponseParser, ABrokenCallIsTextAndTheNextIsRead) {
  const WholeOutput output = parse(hermes(), options(),
                                   "<tool_call>\n{\"name\": \"weather\", \"arguments\": "
                                   "{]}\n</tool_call>\n<tool_call>{\"name\": \"weather\", "
                                   "\"arguments\": {\"city\": \"</tool_call>\"}}</tool_call>");
  EXPECT_EQ(output.text, "<tool_call>\n{\"name\": \"weather\", \"arguments\": {]}\n</tool_call>");
  ASSERT_EQ(output.calls.size(), 1u);
  EXPECT_EQ(output.calls[0].arguments, R"({"city":"</tool_call>"})");
}

TEST(ResponseParser, WithoutToolsCallsAreText) {
  const std::string text = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {}}\n</tool_call>";
  ResponseOptions none = options();
  none.calls = false;
  EXPECT_EQ(parse(hermes(), none, text).text, text);
}

TEST(ResponseParser, ChannelsAreReasoningAnswerAndCalls) {
  ResponseTemplate form;
  form.channels = true;
  const WholeOutput answer =
      parse(form, options(),
            "<|channel|>analysis<|message|>They ask.<|end|><|start|>assistant<|channel|>final"
            "<|message|>It rains.");
  EXPECT_EQ(answer.reasoning, "They ask.");
  EXPECT_EQ(answer.text, "It rains.");
  const WholeOutput call = parse(
      form, options(),
      "<|channel|>analysis<|message|>Look.<|end|><|start|>assistant<|channel|>commentary<|message|>A moment."
      "<|end|><|start|>assistant<|channel|>commentary to=functions.weather "
      "<|constrain|>json<|message|>{\"city\": "
      "\"Bern\"}<|call|>");
  EXPECT_EQ(call.reasoning, "Look.");
  EXPECT_EQ(call.text, "A moment.");
  ASSERT_EQ(call.calls.size(), 1u);
  EXPECT_EQ(call.calls[0], (ToolCall{.id = {}, .name = "weather", .arguments = R"({"city":"Bern"})"}));
  const WholeOutput other =
      parse(form, options(), " to=functions.weather<|channel|>commentary json<|message|>{\"days\": 2}");
  ASSERT_EQ(other.calls.size(), 1u);
  EXPECT_EQ(
      parse(form, options(), " to=functions.weather<|channel|>commentary json<|message|>{\"days\": ").text,
      "{\"days\":");
  EXPECT_EQ(parse(form, options(), "Just text").text, "Just text");
}

TEST(ResponseParser, BareCallsAreReadOnlyAtTheBeginningAndOnlyOfKnownTools) {
  ResponseTemplate form;
  form.calls = {{.name_key = "name", .arguments_key = "parameters"}};
  const std::string call = R"({"name": "weather", "parameters": {"city": "Bern"}})";
  EXPECT_EQ(parse(form, options(), call + "; " + call).calls.size(), 2u);
  EXPECT_EQ(parse(form, options(), "Well: " + call).text, "Well: " + call);
  const std::string other = R"({"name": "Anna", "parameters": {"age": 5}})";
  EXPECT_EQ(parse(form, options(), other).text, other);
}

TEST(ResponseParser, ManyBeginningsOfCallsTakeNoMoreTimeThanTheirLength) {
  std::string text;
  for (int i = 0; i < 20000; ++i) text += "<tool_call>{\"name\": \"";
  EXPECT_EQ(parse_response(hermes(), options(), text).text, text);
  std::string ends = "<tool_call>{\"name\": \"";
  for (int i = 0; i < 20000; ++i) ends += "</tool_call>";
  EXPECT_EQ(parse_response(hermes(), options(), ends).text, ends);
}

TEST(ArgumentTypes, TextBecomesWhatTheSchemaSays) {
  const ArgumentTypes types(tools());
  EXPECT_EQ(types.value("weather", "city", "5"), OrderedJson("5"));
  EXPECT_EQ(types.value("weather", "days", " 5\n"), OrderedJson(5));
  EXPECT_EQ(types.value("weather", "days", "5.0"), OrderedJson(5));
  EXPECT_EQ(types.value("weather", "days", "soon"), OrderedJson("soon"));
  EXPECT_EQ(types.value("weather", "exact", "True"), OrderedJson(true));
  EXPECT_EQ(types.value("weather", "units", "['C', True]"), OrderedJson::array({"C", true}));
  EXPECT_EQ(types.value("nobody", "x", "[1]"), OrderedJson::array({1}));
  EXPECT_EQ(types.value("nobody", "x", "a text"), OrderedJson("a text"));
}

}  // namespace
}  // namespace quire
