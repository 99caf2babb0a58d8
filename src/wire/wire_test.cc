#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "openai/any_body.h"
#include "openai/openai_writer.h"
#include "wire/anthropic_request.h"
#include "wire/anthropic_writer.h"
#include "wire/ollama_request.h"
#include "wire/ollama_writer.h"

namespace quire {
namespace {

using testing::HasSubstr;
using Kind = OutputEvent::Kind;

// An answer that reasons, speaks and calls.
AnswerPart known_answer() {
  AnswerPart part;
  part.events = {{.kind = Kind::reasoning, .text = "They ask."},
                 {.kind = Kind::text, .text = "A moment."},
                 {.kind = Kind::call_begin, .text = "clock"},
                 {.kind = Kind::call_arguments, .text = R"({"zone":"UTC"})"},
                 {.kind = Kind::call_end}};
  return part;
}

AnswerEnd called() {
  return {.reason = FinishReason::stop, .called = true, .tokens = 9};
}

Usage usage() {
  return {.prompt_tokens = 10, .answer_tokens = 9, .cached_tokens = 4};
}

ResponseHead head(AskKind kind = AskKind::chat) {
  return {kind, "id-1", 1700000000, "bytes", "print"};
}

Ask asked() {
  Ask ask;
  ask.prompts = {{1, 2, 3}};
  return ask;
}

// The data of a stream of server-sent events.
std::vector<OrderedJson> events_of(const std::string& stream) {
  std::vector<OrderedJson> events;
  for (size_t at = 0; (at = stream.find("data: {", at)) != std::string::npos;) {
    const size_t end = stream.find("\n\n", at);
    events.push_back(OrderedJson::parse(stream.substr(at + 6, end - at - 6)));
    at = end;
  }
  return events;
}

std::string stream_of(AnswerWriter& writer) {
  std::string out;
  writer.begin(0, out);
  writer.part(known_answer(), out);
  writer.end(0, called(), out);
  writer.done(usage(), nullptr, out);
  return out;
}

std::vector<WholeAnswer> whole_answers() {
  std::vector<WholeAnswer> answers(1);
  answers[0].part = known_answer();
  answers[0].end = called();
  return answers;
}

TEST(OpenAiWriter, TellsReasoningTextAndCallsInDeltas) {
  const Ask ask = asked();
  OpenAiWriter writer(head(), ask, byte_model().text->tokenizer);
  const std::string stream = stream_of(writer);
  EXPECT_TRUE(stream.ends_with(kSseDone));
  const auto events = events_of(stream);
  ASSERT_EQ(events.size(), 6u);
  const auto delta = [&](size_t i) { return events[i]["choices"][0]["delta"]; };
  EXPECT_EQ(delta(0)["role"], "assistant");
  EXPECT_EQ(delta(1)["reasoning_content"], "They ask.");
  EXPECT_EQ(delta(1)["reasoning"], "They ask.");
  EXPECT_EQ(delta(2)["content"], "A moment.");
  EXPECT_EQ(delta(3)["tool_calls"][0]["function"]["name"], "clock");
  EXPECT_THAT(delta(3)["tool_calls"][0]["id"].get<std::string>(), HasSubstr("call_"));
  EXPECT_EQ(delta(4)["tool_calls"][0]["index"], 0);
  EXPECT_EQ(delta(4)["tool_calls"][0]["function"]["arguments"], R"({"zone":"UTC"})");
  EXPECT_EQ(events[5]["choices"][0]["finish_reason"], "tool_calls");
}

TEST(OpenAiWriter, AWholeAnswerHasTheSame) {
  const Ask ask = asked();
  OpenAiWriter writer(head(), ask, byte_model().text->tokenizer);
  const OrderedJson choice = writer.whole(whole_answers(), usage(), nullptr)["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(choice["message"]["content"], "A moment.");
  EXPECT_EQ(choice["message"]["reasoning_content"], "They ask.");
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["arguments"], R"({"zone":"UTC"})");
}

TEST(AnthropicWriter, TellsBlocksOneAfterTheOther) {
  const Ask ask = asked();
  AnthropicWriter writer(head(), ask);
  std::vector<std::string> types;
  const auto events = events_of(stream_of(writer));
  for (const OrderedJson& event : events) types.push_back(event["type"].get<std::string>());
  EXPECT_EQ(types, (std::vector<std::string>{
                       "message_start", "content_block_start", "content_block_delta", "content_block_delta",
                       "content_block_stop", "content_block_start", "content_block_delta",
                       "content_block_stop", "content_block_start", "content_block_delta",
                       "content_block_stop", "message_delta", "message_stop"}));
  EXPECT_EQ(events[8]["content_block"]["name"], "clock");
  EXPECT_EQ(events[8]["index"], 2);
  EXPECT_EQ(events[9]["delta"]["partial_json"], R"({"zone":"UTC"})");
  EXPECT_EQ(events[11]["delta"]["stop_reason"], "tool_use");
  EXPECT_EQ(events[11]["usage"]["cache_read_input_tokens"], 4);
  EXPECT_EQ(events[11]["usage"]["input_tokens"], 6);
}

TEST(AnthropicWriter, AWholeAnswerHasTheSame) {
  const Ask ask = asked();
  AnthropicWriter writer(head(), ask);
  const OrderedJson message = writer.whole(whole_answers(), usage(), nullptr);
  ASSERT_EQ(message["content"].size(), 3u);
  EXPECT_EQ(message["content"][0]["thinking"], "They ask.");
  EXPECT_EQ(message["content"][2]["input"]["zone"], "UTC");
  EXPECT_EQ(message["stop_reason"], "tool_use");
}

TEST(OllamaWriter, TellsALineForEachPiece) {
  const Ask ask = asked();
  OllamaWriter writer(head(), ask);
  std::vector<OrderedJson> lines;
  std::istringstream stream(stream_of(writer));
  for (std::string line; std::getline(stream, line);) lines.push_back(OrderedJson::parse(line));
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[0]["message"]["thinking"], "They ask.");
  EXPECT_EQ(lines[1]["message"]["content"], "A moment.");
  EXPECT_EQ(lines[2]["message"]["tool_calls"][0]["function"]["arguments"]["zone"], "UTC");
  EXPECT_EQ(lines[3]["done"], true);
  EXPECT_EQ(lines[3]["eval_count"], 9);
}

Ask anthropic(const std::string& fields) {
  return parse_anthropic_messages(
      OrderedJson::parse(
          R"({"model": "bytes", "max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}])" + fields +
          "}"),
      byte_model());
}

std::string prompt_of(const Ask& ask) {
  return byte_model().text->tokenizer.decode(ask.prompts[0]);
}

TEST(AnthropicRequest, AChangingNumberIsMadeTheSame) {
  const std::string system = R"(, "system": "billing: cc=1; cch=)";
  EXPECT_EQ(prompt_of(anthropic(system + "0af31;\"")), prompt_of(anthropic(system + "99;\"")));
  EXPECT_THAT(prompt_of(anthropic(R"(, "system": "cch=what is this")")), HasSubstr("cch=what is this"));
}

TEST(AnthropicRequest, ToolsAreToldOfAndCallsCanBeForced) {
  const std::string tools = R"(, "tools": [{"name": "clock", "input_schema": {"type": "object"}}])";
  const Ask ask = anthropic(tools);
  EXPECT_THAT(prompt_of(ask), HasSubstr("clock"));
  EXPECT_TRUE(ask.parse && ask.parse->calls);
  EXPECT_FALSE(anthropic(tools + R"(, "tool_choice": {"type": "none"})").parse->calls);
  EXPECT_EQ(ask.request.grammar, nullptr);
  EXPECT_NE(anthropic(tools + R"(, "tool_choice": {"type": "any"})").request.grammar, nullptr);
  EXPECT_THROW(anthropic(tools + R"(, "tool_choice": {"type": "tool", "name": "oracle"})"), ApiError);
  EXPECT_THROW(anthropic(R"(, "tools": [{"type": "web_search_20250305", "name": "web_search"}])"), ApiError);
}

TEST(OllamaRequest, StreamsUnlessItSaysOtherwise) {
  const OrderedJson body = OrderedJson::parse(
      R"({"model": "bytes:latest", "messages": [{"role": "user", "content": "Hi"}], "options": {"num_predict": 7, "seed": 3}})");
  const Ask ask = parse_ollama_chat(body, byte_model());
  EXPECT_TRUE(ask.stream);
  EXPECT_EQ(ask.request.max_tokens, 7u);
  EXPECT_EQ(ask.request.sampling.seed, 3u);
}

}  // namespace
}  // namespace quire
