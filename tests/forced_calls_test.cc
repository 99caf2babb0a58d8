// Calls that are forced, as the house model makes them at a temperature at which it says anything: in every form, read back by the
// parser, with arguments that their schemas hold for.
#include <random>

#include <gtest/gtest.h>

#include "chat/template_case.h"
#include "engine/engine.h"
#include "engine/loaded_model.h"
#include "grammar/schema_validator.h"
#include "openai/call_grammar.h"

namespace quire {
namespace {

const std::string kHouse = QUIRE_SOURCE_DIR "/models/house/house.gguf";
constexpr uint32_t kCallsOfAForm = 2;

constexpr const char* kSchema =
    R"({"type": "object", "properties": {"city": {"type": "string", "maxLength": 30}, "days": {"type": "integer", "minimum": 1, "maximum": 40},
    "exact": {"type": "boolean"}, "units": {"type": "array", "items": {"enum": ["C", "K", 5, null]}, "maxItems": 3},
    "note": {"anyOf": [{"type": "string", "maxLength": 20}, {"type": "null"}]}, "ratio": {"type": ["number", "string"], "maxLength": 12},
    "place": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 10}, "x": {"type": "number"}}, "required": ["name"],
      "additionalProperties": false}}, "required": ["city", "days", "place"], "additionalProperties": false})";

// What the table of markers knows, for templates whose calls cannot be rendered.
constexpr const char* kMarkers[] = {"<tool_call> <function=f>",
                                    "<tool_call> <arg_key>",
                                    "<tool_call>",
                                    "<｜tool▁calls▁begin｜>",
                                    "[TOOL_CALLS]",
                                    "<|tool_calls_section_begin|>",
                                    "<|tool_call_start|>",
                                    "functools",
                                    "<|python_tag|>",
                                    "<|start|>assistant <|message|>"};

class ForcedCalls : public testing::Test {
 protected:
  void expect_calls(const std::string& chat_template) {
    ModelText text = load_model_text(kHouse);
    text.chat_template = ChatTemplate(chat_template, {.bos_token = "<s>", .eos_token = "</s>"});
    const ServedModel model = with_chat_format(
        {.name = "house", .text = &text, .vocab = loaded_.spec().vocab, .context = 2048, .created = 0});
    Conversation asked;
    asked.tools.push_back(
        {.name = "weather", .description = "", .parameters = OrderedJson::parse(kSchema), .strict = true});
    ConstraintWish wish{
        .kind = ConstraintWish::Kind::tool_call, .field = "tool_choice", .tools = {"weather"}};
    for (uint32_t i = 0; i < kCallsOfAForm; ++i) {
      Request request;
      request.prompt = text.tokenizer.encode("What is the weather like in " + std::to_string(i) + " places?");
      request.sampling.temperature = 2;
      request.sampling.seed = ++seed_;
      request.max_tokens = 300;
      request.shown_special = model.format_tokens;
      request.grammar = forced_call(wish, asked, model);
      const Answer answer = engine_.run(std::move(request));
      if (answer.finish_reason != FinishReason::stop) continue;
      const std::string& said = answer.text;
      SCOPED_TRACE(said);
      const WholeOutput output =
          parse_response(model.format->traits().response,
                         {.start = {}, .types = ArgumentTypes(tools_json(asked.tools))}, said);
      ASSERT_EQ(output.calls.size(), 1u);
      EXPECT_EQ(output.text, "");
      EXPECT_EQ(output.calls[0].name, "weather");
      EXPECT_TRUE(holds(parse_ordered_json(output.calls[0].arguments, "arguments")))
          << output.calls[0].arguments;
      ++complete_;
    }
  }

  static bool holds(const OrderedJson& value) {
    grammar::ExprPool pool;
    grammar::SchemaStore store;
    grammar::SchemaValues values(pool);
    return grammar::SchemaValidator(values).holds(grammar::read_schema(OrderedJson::parse(kSchema), store),
                                                  value);
  }

  LoadedModel loaded_{kHouse, LoadOptions{.threads = 1}};
  Engine engine_{loaded_.engine_model(), EngineOptions{.context = 2048}};
  uint64_t seed_ = 0;
  uint32_t complete_ = 0;
};

TEST_F(ForcedCalls, AreReadBackAndValidInEveryDerivedForm) {
  for (const TemplateCase& one : kTemplateCases) {
    SCOPED_TRACE(one.name);
    expect_calls(one.source());
  }
  EXPECT_GT(complete_, kCallsOfAForm * std::size(kTemplateCases) / 2);
}

TEST_F(ForcedCalls, AreReadBackAndValidInEveryBuiltInForm) {
  for (const char* marker : kMarkers) {
    SCOPED_TRACE(marker);
    expect_calls(
        "{# " + std::string(marker) +
        " #}{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}<s>{{ m.role }}: {{ "
        "m.content }}</s>{% endfor %}");
  }
  EXPECT_GT(complete_, kCallsOfAForm * std::size(kMarkers) / 2);
}

}  // namespace
}  // namespace quire
