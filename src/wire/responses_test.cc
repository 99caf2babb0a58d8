#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "openai/any_body.h"
#include "wire/responses_request.h"
#include "wire/responses_turn.h"
#include "wire/responses_writer.h"

namespace quire {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Said = OutputEvent::Kind;

OrderedJson nothing_before(const std::string& id) {
  throw ApiError(400, "previous_response_id", "previous_response_not_found", id);
}

Ask responses(const std::string& fields, const FindItems& find = nothing_before) {
  return parse_responses(OrderedJson::parse(R"({"model": "bytes", )" + fields + "}"), byte_model(), find);
}

// Of a request that must be refused: the field that is named.
std::string refused_field(const std::string& fields) {
  try {
    responses(fields);
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status(), 400);
    const OrderedJson param = error.json()["error"]["param"];
    return param.is_string() ? param.get<std::string>() : "no field";
  }
  return "not refused";
}

std::string prompt(const Ask& ask) {
  return byte_model().text->tokenizer.decode(ask.prompts[0], Tokenizer::Special::keep);
}

TEST(ResponsesRequest, ATextIsWhatTheUserSays) {
  EXPECT_EQ(prompt(responses(R"("input": "Hi")")), "<s>user: Hi</s>");
  EXPECT_EQ(prompt(responses(R"("instructions": "Be kind.", "input": "Hi")")),
            "<s>system: Be kind.</s><s>user: Hi</s>");
}

TEST(ResponsesRequest, ItemsMayHavePartsAndNeedNoType) {
  const Ask ask = responses(R"("input": [
    {"role": "user", "content": "Hi"},
    {"type": "message", "role": "assistant", "id": "msg_1", "content": [{"type": "output_text", "text": "Ho", "annotations": []}]},
    {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]}])");
  EXPECT_EQ(prompt(ask), "<s>user: Hi</s><s>assistant: Ho</s><s>user: a\nb</s>");
}

TEST(ResponsesRequest, WhatDevelopersSayFirstIsOneSystemMessage) {
  EXPECT_EQ(prompt(responses(R"("instructions": "One.", "input": [{"role": "developer", "content": "Two."},
    {"role": "user", "content": "Hi"}])")),
            "<s>system: One.\n\nTwo.</s><s>user: Hi</s>");
}

TEST(ResponsesRequest, CallsAndResultsGoBackIn) {
  const Ask ask =
      responses(R"("tools": [{"type": "function", "name": "clock", "parameters": {"type": "object"}}],
    "input": [{"role": "user", "content": "When?"},
      {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "I ask."}]},
      {"type": "function_call", "call_id": "call_1", "name": "clock", "arguments": "{\"zone\": \"UTC\"}"},
      {"type": "function_call_output", "call_id": "call_1", "output": "noon"}])");
  EXPECT_THAT(prompt(ask), HasSubstr("clock"));
  EXPECT_THAT(prompt(ask), HasSubstr("UTC"));
  EXPECT_THAT(prompt(ask), HasSubstr("noon"));
  EXPECT_TRUE(ask.parse && ask.parse->calls);
}

TEST(ResponsesRequest, GoesOnFromWhatWasSaidButNotFromItsInstructions) {
  const auto find = [](const std::string& id) {
    EXPECT_EQ(id, "resp_1");
    return OrderedJson::parse(
        R"([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}])");
  };
  const Ask ask =
      responses(R"("previous_response_id": "resp_1", "instructions": "New.", "input": "And?")", find);
  EXPECT_EQ(prompt(ask), "<s>system: New.</s><s>user: Hi</s><s>assistant: Ho</s><s>user: And?</s>");
  EXPECT_EQ(ask.turn->items.size(), 3u);
  EXPECT_EQ(ask.turn->fields["previous_response_id"], "resp_1");
  EXPECT_EQ(refused_field(R"("previous_response_id": "resp_2", "input": "Hi")"), "previous_response_id");
}

TEST(ResponsesRequest, ATemplateThatWantsItsSystemMessageFirstGetsLaterOnesFromTheUser) {
  const ModelText text = byte_text(
      "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('late') }}"
      "{% endif %}<s>{{ m.role }}: {{ m.content }}</s>{% endfor %}");
  const ServedModel model =
      with_chat_format({.name = "late", .text = &text, .vocab = 258, .context = 4096, .created = 0});
  const Ask ask = parse_responses(OrderedJson::parse(R"({"input": [{"role": "user", "content": "Hi"},
    {"role": "developer", "content": "Hurry."}]})"),
                                  model, nothing_before);
  EXPECT_EQ(prompt(ask), "<s>user: Hi</s><s>user: Hurry.</s>");
}

TEST(ResponsesRequest, CallsAndFormsCanBeForced) {
  const std::string tools = R"("input": "Hi", "tools": [{"type": "function", "name": "clock"}])";
  EXPECT_EQ(responses(tools).request.grammar, nullptr);
  EXPECT_FALSE(responses(tools + R"(, "tool_choice": "none")").parse->calls);
  EXPECT_NE(responses(tools + R"(, "tool_choice": "required")").request.grammar, nullptr);
  EXPECT_NE(responses(tools + R"(, "tool_choice": {"type": "function", "name": "clock"})").request.grammar,
            nullptr);
  EXPECT_NE(responses(tools + R"(, "tool_choice": {"type": "allowed_tools", "mode": "required",
    "tools": [{"type": "function", "name": "clock"}]})")
                .request.grammar,
            nullptr);
  EXPECT_EQ(refused_field(tools + R"(, "tool_choice": {"type": "function", "name": "oracle"})"),
            "tool_choice");
  const std::string form =
      R"("text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "integer"}}})";
  EXPECT_NE(responses(R"("input": "Hi", )" + form).request.grammar, nullptr);
  EXPECT_EQ(refused_field(tools + R"(, "tool_choice": "required", )" + form), "text.format");
}

TEST(ResponsesRequest, LimitsAndSamplingAreRead) {
  const Ask ask = responses(
      R"("input": "Hi", "max_output_tokens": 7, "temperature": 0.7, "top_p": 0.5, "stream": true, "store": false,
         "parallel_tool_calls": false, "metadata": {"a": "b"}, "include": ["reasoning.encrypted_content"])");
  EXPECT_EQ(ask.request.max_tokens, 7u);
  EXPECT_FLOAT_EQ(ask.request.sampling.temperature, 0.7f);
  EXPECT_TRUE(ask.stream && ask.one_call && !ask.turn->store);
  EXPECT_EQ(ask.turn->fields["temperature"], 0.7);
  EXPECT_EQ(ask.turn->fields["metadata"]["a"], "b");
  EXPECT_EQ(ask.turn->fields["tool_choice"], "auto");
}

TEST(ResponsesRequest, WhatItCannotDoIsRefusedByName) {
  const std::string hi = R"("input": "Hi", )";
  EXPECT_EQ(refused_field(R"("instructions": "Hi")"), "input");
  EXPECT_EQ(refused_field(hi + R"("background": true)"), "background");
  EXPECT_EQ(refused_field(hi + R"("conversation": "conv_1")"), "conversation");
  EXPECT_EQ(refused_field(hi + R"("prompt": {"id": "p"})"), "prompt");
  EXPECT_EQ(refused_field(hi + R"("truncation": "auto")"), "truncation");
  EXPECT_EQ(refused_field(hi + R"("top_logprobs": 3)"), "top_logprobs");
  EXPECT_EQ(refused_field(hi + R"("include": ["message.output_text.logprobs"])"), "include");
  EXPECT_EQ(refused_field(hi + R"("max_tool_calls": 3)"), "max_tool_calls");
  EXPECT_EQ(refused_field(hi + R"("text": {"verbosity": "low"})"), "text.verbosity");
  EXPECT_EQ(refused_field(hi + R"("tools": [{"type": "web_search"}])"), "tools[0].type");
  EXPECT_EQ(refused_field(hi + R"("metadata": {"a": 1})"), "metadata");
  EXPECT_EQ(refused_field(hi + R"("reasoning": {"effort": "enormous"})"), "reasoning.effort");
  EXPECT_EQ(refused_field(R"("input": [{"type": "item_reference", "id": "msg_1"}])"), "input[0]");
  EXPECT_EQ(
      refused_field(R"("input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}])"),
      "input[0].content[0]");
}

// What an answer that reasons, speaks and calls is told in.
struct Told {
  Ask ask = responses(R"("input": "When?", "store": true)");
  std::string kept_id, kept_items, kept_response;

  Told() {
    ask.turn->keep = [this](const std::string& id, std::string response, std::string items) {
      kept_id = id;
      kept_response = std::move(response);
      kept_items = std::move(items);
    };
  }
  ResponseHead head() const { return {AskKind::chat, "resp_7", 1700000000, "bytes", "print"}; }
  AnswerPart part() const {
    AnswerPart part;
    part.events = {{.kind = Said::reasoning, .text = "They "},
                   {.kind = Said::reasoning, .text = "ask."},
                   {.kind = Said::text, .text = "A moment."},
                   {.kind = Said::call_begin, .text = "clock"},
                   {.kind = Said::call_arguments, .text = R"({"zone":"UTC"})"},
                   {.kind = Said::call_end}};
    return part;
  }
  AnswerEnd end(FinishReason reason = FinishReason::stop) const {
    return {.reason = reason, .called = true, .tokens = 30};
  }
  Usage usage() const { return {.prompt_tokens = 10, .answer_tokens = 30, .cached_tokens = 4}; }
};

std::vector<OrderedJson> told_events(const std::string& stream) {
  std::vector<OrderedJson> events;
  for (size_t at = 0; (at = stream.find("data: {", at)) != std::string::npos;) {
    const size_t end = stream.find("\n\n", at);
    events.push_back(OrderedJson::parse(stream.substr(at + 6, end - at - 6)));
    at = end;
  }
  return events;
}

TEST(ResponsesWriter, TellsItemsOneAfterTheOther) {
  const Told told;
  ResponsesWriter writer(told.head(), told.ask, byte_model().text->tokenizer);
  std::string stream;
  writer.begin(0, stream);
  writer.part(told.part(), stream);
  writer.end(0, told.end(), stream);
  writer.done(told.usage(), nullptr, stream);
  const auto events = told_events(stream);
  std::vector<std::string> types;
  for (size_t i = 0; i < events.size(); ++i) {
    EXPECT_EQ(events[i]["sequence_number"], i);
    types.push_back(events[i]["type"].get<std::string>().substr(9));
  }
  EXPECT_THAT(types, ElementsAre("created", "in_progress",                                            //
                                 "output_item.added", "content_part.added", "reasoning_text.delta",   //
                                 "reasoning_text.delta", "reasoning_text.done", "content_part.done",  //
                                 "output_item.done",                                                  //
                                 "output_item.added", "content_part.added", "output_text.delta",      //
                                 "output_text.done", "content_part.done", "output_item.done",         //
                                 "output_item.added", "function_call_arguments.delta",                //
                                 "function_call_arguments.done", "output_item.done", "completed"));
  EXPECT_THAT(stream, HasSubstr("event: response.output_text.delta\ndata: "));
  const OrderedJson& response = events.back()["response"];
  EXPECT_EQ(response["status"], "completed");
  ASSERT_EQ(response["output"].size(), 3u);
  EXPECT_EQ(response["output"][0]["content"][0]["text"], "They ask.");
  EXPECT_EQ(response["output"][2]["arguments"], R"({"zone":"UTC"})");
  // What a client has been told of an item stays so.
  EXPECT_EQ(events[9]["item"]["id"], response["output"][1]["id"]);
  EXPECT_EQ(events[14]["item"], response["output"][1]);
  EXPECT_EQ(events[15]["item"]["call_id"], response["output"][2]["call_id"]);
  EXPECT_EQ(response["usage"]["input_tokens_details"]["cached_tokens"], 4);
  EXPECT_EQ(response["usage"]["output_tokens_details"]["reasoning_tokens"], 9);
  EXPECT_EQ(response["usage"]["total_tokens"], 40);
}

constexpr const char* kAgentsTools = R"("tools": [
    {"type": "function", "name": "clock", "parameters": {"type": "object"}},
    {"type": "custom", "name": "shell", "description": "Runs it.", "format": {"type": "text"}},
    {"type": "namespace", "name": "mcp__files", "description": "Files.", "tools": [
        {"type": "function", "name": "read", "description": "One.", "parameters": {"type": "object"}},
        {"type": "custom", "name": "write"}]}])";

TEST(ResponsesTools, AreFunctionsToTheModelWhateverTheyAre) {
  std::vector<ToolSpec> tools;
  const OrderedJson body = OrderedJson::parse("{" + std::string(kAgentsTools) + "}");
  const ResponsesTools known = read_responses_tools(JsonFields(body), tools);
  ASSERT_EQ(tools.size(), 4u);
  EXPECT_EQ(tools[0].name, "clock");
  EXPECT_EQ(tools[1].name, "shell");
  EXPECT_EQ(tools[1].parameters["required"][0], "input");
  EXPECT_EQ(tools[2].name, "mcp__files__read");
  EXPECT_EQ(tools[2].description, "Files.\n\nOne.");
  EXPECT_EQ(tools[3].name, "mcp__files__write");
  EXPECT_FALSE(known.contains("clock"));
  EXPECT_TRUE(known.at("shell").custom);
  EXPECT_EQ(known.at("mcp__files__read").space, "mcp__files");
  EXPECT_EQ(known.at("mcp__files__read").name, "read");
  EXPECT_FALSE(known.at("mcp__files__read").custom);
}

TEST(ResponsesTools, ThatCannotBeHonouredAreRefusedByName) {
  const std::string hi = R"("input": "Hi", )";
  EXPECT_EQ(refused_field(hi + R"("tools": [{"type": "custom", "name": "patch", "format": {"type": "grammar",
      "syntax": "lark", "definition": "start: /a/"}}])"),
            "tools[0].format");
  EXPECT_EQ(refused_field(
                hi + R"("tools": [{"type": "namespace", "name": "a", "tools": [{"type": "web_search"}]}])"),
            "tools[0].tools[0].type");
  EXPECT_EQ(refused_field(hi + R"("tools": [{"type": "namespace", "name": "a"}])"), "tools[0].tools");
  EXPECT_EQ(refused_field(hi + R"("tools": [{"type": "namespace", "tools": []}])"), "tools[0].name");
  EXPECT_EQ(refused_field(hi + R"("tools": [{"type": "namespace", "name": "a", "tools": [{"type": "namespace",
      "name": "b", "tools": []}]}])"),
            "tools[0].tools[0].type");
  EXPECT_EQ(
      refused_field(hi + R"("tools": [{"type": "function", "name": "a__b"}, {"type": "namespace", "name": "a",
      "tools": [{"type": "function", "name": "b"}]}])"),
      "tools[1].tools[0].name");
}

TEST(ResponsesTools, AreCalledByTheNamesThatTheirClientKnows) {
  const Ask ask = responses(R"("input": "When?", )" + std::string(kAgentsTools));
  ResponsesWriter writer({AskKind::chat, "resp_7", 1700000000, "bytes", "print"}, ask,
                         byte_model().text->tokenizer);
  AnswerPart part;
  part.events = {{.kind = Said::call_begin, .text = "shell"},
                 {.kind = Said::call_arguments, .text = R"({"input": "ls \"-l\"\n"})"},
                 {.kind = Said::call_end},
                 {.kind = Said::call_begin, .text = "mcp__files__read"},
                 {.kind = Said::call_arguments, .text = R"({"path":"x"})"},
                 {.kind = Said::call_end}};
  std::string stream;
  writer.begin(0, stream);
  writer.part(part, stream);
  writer.end(0, {.called = true, .tokens = 30}, stream);
  writer.done({}, nullptr, stream);
  const auto events = told_events(stream);
  std::vector<std::string> types;
  for (const OrderedJson& event : events) types.push_back(event["type"].get<std::string>().substr(9));
  EXPECT_THAT(types, ElementsAre("created", "in_progress", "output_item.added",
                                 "custom_tool_call_input.delta", "custom_tool_call_input.done",
                                 "output_item.done", "output_item.added", "function_call_arguments.delta",
                                 "function_call_arguments.done", "output_item.done", "completed"));
  const OrderedJson& output = events.back()["response"]["output"];
  EXPECT_EQ(output[0]["type"], "custom_tool_call");
  EXPECT_EQ(output[0]["name"], "shell");
  EXPECT_EQ(output[0]["input"], "ls \"-l\"\n");
  EXPECT_EQ(events[2]["item"]["id"], output[0]["id"]);
  EXPECT_EQ(events[5]["item"], output[0]);
  EXPECT_EQ(output[1]["type"], "function_call");
  EXPECT_EQ(output[1]["namespace"], "mcp__files");
  EXPECT_EQ(output[1]["name"], "read");
  EXPECT_EQ(output[1]["arguments"], R"({"path":"x"})");
}

TEST(ResponsesTools, GoBackInWithTheirResults) {
  const Ask ask = responses(R"("input": [{"role": "user", "content": "When?"},
      {"type": "custom_tool_call", "call_id": "c1", "name": "shell", "input": "date"},
      {"type": "custom_tool_call_output", "call_id": "c1", "output": "noon"},
      {"type": "function_call", "call_id": "c2", "namespace": "mcp__files", "name": "read", "arguments": "{}"},
      {"type": "function_call_output", "call_id": "c2", "output": "empty"}], )" +
                            std::string(kAgentsTools));
  for (const char* words : {"date", "noon", "mcp__files__read", "empty"})
    EXPECT_THAT(prompt(ask), HasSubstr(words));
}

TEST(ResponsesWriter, AWholeAnswerIsWhatItsStreamComesToAndIsKept) {
  const Told told;
  ResponsesWriter writer(told.head(), told.ask, byte_model().text->tokenizer);
  std::vector<WholeAnswer> answers(1);
  answers[0].part = told.part();
  answers[0].end = told.end();
  const OrderedJson response = writer.whole(std::move(answers), told.usage(), nullptr);
  EXPECT_EQ(response["object"], "response");
  EXPECT_EQ(response["output"].size(), 3u);
  EXPECT_EQ(told.kept_id, "resp_7");
  EXPECT_EQ(OrderedJson::parse(told.kept_response), response);
  // The conversation goes on from there.
  const auto find = [&](const std::string&) { return OrderedJson::parse(told.kept_items); };
  const Ask next = responses(
      R"("previous_response_id": "resp_7", "input": [{"type": "function_call_output", "call_id": ")" +
          response["output"][2]["call_id"].get<std::string>() + R"(", "output": "noon"}])",
      find);
  for (const char* words : {"When?", "A moment.", "UTC", "noon"}) EXPECT_THAT(prompt(next), HasSubstr(words));
}

TEST(ResponsesWriter, AnAnswerThatIsCutOffIsIncomplete) {
  const Told told;
  ResponsesWriter writer(told.head(), told.ask, byte_model().text->tokenizer);
  std::string stream;
  writer.begin(0, stream);
  AnswerPart part;
  part.events = {{.kind = Said::text, .text = "A mo"}};
  writer.part(part, stream);
  writer.end(0, {.reason = FinishReason::length, .tokens = 4}, stream);
  writer.done(told.usage(), nullptr, stream);
  const OrderedJson last = told_events(stream).back();
  EXPECT_EQ(last["type"], "response.incomplete");
  EXPECT_EQ(last["response"]["incomplete_details"]["reason"], "max_output_tokens");
  EXPECT_EQ(last["response"]["output"][0]["status"], "incomplete");
}

TEST(ResponsesWriter, AnAnswerThatSaysNothingHasAMessageAllTheSame) {
  const Told told;
  ResponsesWriter writer(told.head(), told.ask, byte_model().text->tokenizer);
  const OrderedJson response = writer.whole(std::vector<WholeAnswer>(1), told.usage(), nullptr);
  ASSERT_EQ(response["output"].size(), 1u);
  EXPECT_EQ(response["output"][0]["content"][0]["text"], "");
}

TEST(ResponsesWriter, AFailureIsToldAsAResponseThatFailed) {
  const Told told;
  ResponsesWriter writer(told.head(), told.ask, byte_model().text->tokenizer);
  std::string stream;
  writer.failed(ApiError(500, "", "step_failed", "it broke"), stream);
  const auto events = told_events(stream);
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0]["type"], "response.created");
  EXPECT_EQ(events[2]["type"], "response.failed");
  EXPECT_EQ(events[2]["response"]["error"]["message"], "it broke");
  EXPECT_EQ(told.kept_id, "");
}

}  // namespace
}  // namespace quire
