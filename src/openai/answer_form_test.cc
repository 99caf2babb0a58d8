#include "openai/answer_form.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "grammar/grammar.h"
#include "openai/any_body.h"

namespace quire {
namespace {

using testing::EndsWith;

// A model that is made to reason by the end of its prompt.
const ServedModel& thinker() {
  static const ModelText text = byte_text(
      "{% for m in messages %}<s>{{ m.role }}: {% if m.reasoning_content %}<think>{{ m.reasoning_content "
      "}}</think>"
      "{% endif %}{{ m.content }}</s>{% endfor %}{% if add_generation_prompt %}<s>assistant: <think>\n{% "
      "endif %}");
  static const ServedModel model =
      with_chat_format({.name = "bytes", .text = &text, .vocab = 258, .context = 4096, .created = 0});
  return model;
}

Ask ask(const std::string& more, const ServedModel& model) {
  return parse_chat(OrderedJson::parse(R"({"messages": [{"role": "user", "content": "Hi"}])" + more + "}"),
                    model);
}

std::string prompt_of(const Ask& ask) {
  return thinker().text->tokenizer.decode(ask.prompts[0]);
}

constexpr const char* kTools =
    R"(, "tools": [{"type": "function", "function": {"name": "clock", "parameters": {"type": "object",
        "properties": {"zone": {"enum": ["UTC", "CET"]}}, "required": ["zone"], "additionalProperties": false}}}])";

TEST(AnswerForm, BeginsAtOnceWhereThePromptHadBegunToReason) {
  const Ask free = ask("", thinker());
  EXPECT_GE(free.parse->start.reasoning, 0);
  EXPECT_THAT(prompt_of(free), EndsWith("<think>\n"));
  for (const std::string& form : {std::string(R"(, "response_format": {"type": "json_object"})"),
                                  std::string(R"(, "guided_regex": "[0-9]+")"),
                                  kTools + std::string(R"(, "tool_choice": "required")")}) {
    const Ask kept = ask(form, thinker());
    EXPECT_NE(kept.request.grammar, nullptr) << form;
    EXPECT_EQ(kept.parse->start.reasoning, -1) << form;
    EXPECT_THAT(prompt_of(kept), EndsWith("<think>\n\n</think>\n\n")) << form;
  }
}

TEST(AnswerForm, OfAForcedCallIsOneCallWithArgumentsOfItsSchema) {
  const auto grammar = ask(kTools + std::string(R"(, "tool_choice": "required")"), thinker()).request.grammar;
  std::vector<TokenId> none;
  grammar::Grammar::Place place = grammar->after(none, {}, 0);
  const std::string start = grammar->forced(none, place, 200);
  EXPECT_THAT(start, testing::HasSubstr("clock"));
  const auto accepts = [&](const std::string& arguments) {
    for (const char* end : {"}</tool_call>", "}\n</tool_call>"}) {
      if (grammar->accepts(start.substr(0, start.rfind('{')) + arguments + end)) return true;
    }
    return false;
  };
  EXPECT_TRUE(accepts(R"({"zone":"UTC"})") || accepts(R"({"zone": "UTC"})"));
  EXPECT_FALSE(accepts("{}"));
  EXPECT_FALSE(accepts(R"({"zone":"CEST"})"));
  EXPECT_FALSE(grammar->accepts("It is noon."));
}

TEST(AnswerForm, IsAskedForInOneWayAlone) {
  EXPECT_THROW(ask(kTools + std::string(R"(, "tool_choice": "required", "guided_regex": "a")"), thinker()),
               ApiError);
  EXPECT_THROW(
      ask(kTools + std::string(R"(, "tool_choice": {"type": "function", "function": {"name": "oracle"}})"),
          thinker()),
      ApiError);
  EXPECT_EQ(ask(kTools, thinker()).request.grammar, nullptr);
}

}  // namespace
}  // namespace quire
