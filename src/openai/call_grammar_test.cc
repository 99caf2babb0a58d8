#include "openai/call_grammar.h"

#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "chat/sentinels.h"
#include "chat/template_case.h"
#include "chat/written_call.h"
#include "grammar/schema_validator.h"
#include "openai/any_body.h"

namespace quire {
namespace {

using testing::HasSubstr;

// A model whose tokens are the bytes, and some special ones that forms are written in.
ModelText text_with(const std::string& chat_template, const std::string& response = {}) {
  ModelText text = byte_text(chat_template.c_str());
  TokenizerSpec spec = text.tokenizer.spec();
  for (const char* special :
       {"<tool_call>", "</tool_call>", "<|\"|>", "<|tool_call>", "<tool_call|>", "[TOOL_CALLS]", "[ARGS]",
        "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<|channel|>", "<|message|>",
        "<|start|>", "<|call|>", "<|end|>", "<|constrain|>"}) {
    const TokenId id = TokenId(spec.tokens.size());
    spec.tokens.push_back({.text = special, .kind = TokenKind::control, .in_model = false});
    spec.added_tokens.push_back({.id = id, .text = special, .special = true});
  }
  text.tokenizer = Tokenizer(std::move(spec));
  text.chat_template = ChatTemplate({.usual = chat_template, .tool_use = {}, .response = response},
                                    {.bos_token = "<s>", .eos_token = "</s>"});
  return text;
}

ServedModel model_of(const ModelText& text) {
  return with_chat_format({.name = "bytes",
                           .text = &text,
                           .vocab = uint32_t(text.tokenizer.size()),
                           .context = 65536,
                           .created = 0});
}

constexpr const char* kSchemas[] = {
    R"({"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": -3, "maximum": 40},
        "exact": {"type": "boolean"}, "units": {"type": "array", "items": {"enum": ["°C", "K", 5, null]}, "maxItems": 3},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "ratio": {"type": ["number", "string"]}},
        "required": ["city", "days"], "additionalProperties": false})",
    R"({"type": "object", "properties": {"path": {"type": "string", "pattern": "^[a-z/]+$"},
        "edits": {"type": "array", "maxItems": 2, "items": {"type": "object", "properties": {"old": {"type": "string"},
          "new": {"type": "string"}, "count": {"type": "integer"}}, "required": ["old", "new"], "additionalProperties": false}},
        "mode": {"enum": ["a", "5", "true", 7]}, "any": {}}, "required": ["path", "edits", "mode"]})",
    R"({"$defs": {"n": {"type": "integer"}}, "properties": {"a": {"$ref": "#/$defs/n"},
        "b": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "string", "minLength": 2, "maxLength": 12}]}, "c": {"const": " x "},
        "d": {"type": "string", "format": "date"}, "e": {"type": ["boolean", "integer"]}},
        "required": ["a", "b"], "minProperties": 3, "additionalProperties": false})",
};

Conversation conversation(bool strict) {
  Conversation asked;
  for (const char* schema : kSchemas)
    asked.tools.push_back({.name = "tool" + std::to_string(asked.tools.size()),
                           .description = "Does.",
                           .parameters = OrderedJson::parse(schema),
                           .strict = strict});
  return asked;
}

std::vector<std::string> names_of(const Conversation& asked) {
  std::vector<std::string> names;
  for (const ToolSpec& tool : asked.tools) names.push_back(tool.name);
  return names;
}

bool is_valid(const OrderedJson& schema, const OrderedJson& value) {
  grammar::ExprPool pool;
  grammar::SchemaStore store;
  grammar::SchemaValues values(pool);
  return grammar::SchemaValidator(values).holds(grammar::read_schema(schema, store), value);
}

// Draws any token that may come, and now and then a whole word of those that close something.
std::optional<std::string> sample(const std::shared_ptr<grammar::Grammar>& grammar,
                                  const Tokenizer& tokenizer, const std::vector<std::string>& words,
                                  std::mt19937& random, bool stop_early = true) {
  grammar::Constraint constraint(grammar);
  std::string text;
  for (int step = 0; step < 4000; ++step) {
    if (constraint.may_end() && (stop_early || random() % 8 == 0)) return text;
    if (random() % 3 == 0) {
      const std::string& word = words[random() % words.size()];
      size_t taken = 0;
      const auto tokens = tokenizer.encode(word, {.add_special = false, .parse_special = true});
      while (taken < tokens.size() && constraint.advance(tokens[taken])) ++taken;
      if (taken == tokens.size()) {
        text += word;
        continue;
      }
      constraint.rollback(taken);
    }
    const auto mask = constraint.mask();
    std::vector<TokenId> allowed;
    for (TokenId token = 0; token < tokenizer.size(); ++token) {
      if (grammar::has_token(*mask, token)) allowed.push_back(token);
    }
    if (allowed.empty()) return std::nullopt;
    const TokenId token = allowed[random() % allowed.size()];
    EXPECT_TRUE(constraint.advance(token));
    text += token < 256 ? std::string(1, char(token)) : std::string(tokenizer.token(token));
  }
  return std::nullopt;
}

std::vector<std::string> closing_words(const ResponseTemplate& response) {
  std::vector<std::string> words{"\"",   "}", "]", ")", "</", ">", "true", "5", "null", "a", "<![CDATA[x]]>",
                                 "</x>", " ", "\n"};
  for (const std::string& literal : response.literals()) {
    for (size_t at = 0; at < literal.size();) {  // without what stands for anything
      const size_t end = std::min(literal.find_first_of(std::string("\x01\x02"), at), literal.size());
      if (end > at) words.push_back(literal.substr(at, end - at));
      at = end + 1;
    }
  }
  return words;
}

void expect_calls(const ServedModel& model, uint32_t samples) {
  const Conversation asked = conversation(true);
  const ResponseTemplate& response = model.format->traits().response;
  ConstraintWish wish{
      .kind = ConstraintWish::Kind::tool_call, .field = "tool_choice", .tools = names_of(asked)};
  const auto grammar = forced_call(wish, asked, model);
  std::mt19937 random(11);
  const std::vector<std::string> words = closing_words(response);
  const ArgumentTypes types(tools_json(asked.tools));
  uint32_t complete = 0;
  for (uint32_t i = 0; i < samples; ++i) {
    const auto text = sample(grammar, model.text->tokenizer, words, random);
    if (!text) continue;
    ++complete;
    SCOPED_TRACE(*text);
    const WholeOutput output = parse_response(response, {.start = {}, .types = types}, *text);
    ASSERT_EQ(output.calls.size(), 1u);
    EXPECT_EQ(output.text, "");
    const auto tool = std::ranges::find(asked.tools, output.calls[0].name, &ToolSpec::name);
    ASSERT_NE(tool, asked.tools.end());
    EXPECT_TRUE(is_valid(tool->parameters, parse_ordered_json(output.calls[0].arguments, "arguments")))
        << output.calls[0].arguments;
  }
  EXPECT_GT(complete, samples / 2);
}

// What the table of markers knows, for templates whose calls cannot be rendered.
constexpr std::pair<const char*, const char*> kMarkers[] = {
    {"tags on lines", "<tool_call> <function=f> </think>"},
    {"keys and values", "<tool_call> <arg_key>"},
    {"JSON", "<tool_call>"},
    {"a name and JSON", "<｜tool▁calls▁begin｜>"},
    {"a section with ids", "<|tool_calls_section_begin|>"},
    {"a list", "[TOOL_CALLS]"},
    {"Python", "<|tool_call_start|>"},
    {"functools", "functools"},
    {"bare", "<|python_tag|>"},
    {"channels", "<|start|>assistant <|message|>"},
};

TEST(CallGrammar, AnyCallOfEachDerivedFormIsReadBackAndValid) {
  for (const TemplateCase& one : kTemplateCases) {
    SCOPED_TRACE(one.name);
    const ModelText text = text_with(one.source());
    const ServedModel model = model_of(text);
    ASSERT_EQ(model.format->traits().response.source, ResponseTemplate::Source::derived);
    expect_calls(model, 60);
  }
}

TEST(CallGrammar, AnyCallOfEachBuiltInFormIsReadBackAndValid) {
  for (const auto& [name, marker] : kMarkers) {
    SCOPED_TRACE(name);
    const ModelText text = text_with("{# " + std::string(marker) +
                                     " #}{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in "
                                     "messages %}<s>{{ m.role }}: {{ m.content }}</s>{% endfor %}");
    const ServedModel model = model_of(text);
    ASSERT_EQ(model.format->traits().response.source, ResponseTemplate::Source::built_in);
    expect_calls(model, 60);
  }
}

TEST(CallGrammar, AFormThatTheModelDeclaresMustReadWhatIsForced) {
  const std::string source = kTemplateCases[0].source();
  const auto declared = [](const std::string& open) {
    return R"({"start_anchor": "<|im_start|>assistant\n", "fields": {"tool_calls": {"open": ")" + open +
           R"(", "close": "</tool_call>", "repeats": true, "content": "json"}, "content": {}}})";
  };
  const ModelText same = text_with(source, declared("<tool_call>")),
                  other = text_with(source, declared("<call>"));
  expect_calls(model_of(same), 30);
  ConstraintWish wish{.kind = ConstraintWish::Kind::tool_call, .field = "tool_choice", .tools = {"tool0"}};
  try {
    forced_call(wish, conversation(true), model_of(other));
    ADD_FAILURE() << "it was not refused";
  } catch (const ApiError& error) {
    EXPECT_THAT(error.what(), HasSubstr("no form of its calls is known"));
  }
}

TEST(CallGrammar, WhatAFormIsWrittenAsIsWhatItsGrammarAllows) {
  for (const TemplateCase& one : kTemplateCases) {
    SCOPED_TRACE(one.name);
    const ModelText text = text_with(one.source());
    const ServedModel model = model_of(text);
    Conversation asked;
    asked.tools.push_back({.name = std::string(Sentinels::kName),
                           .description = "",
                           .parameters = Sentinels::tools()[0]["function"]["parameters"],
                           .strict = true});
    ConstraintWish wish{
        .kind = ConstraintWish::Kind::tool_call, .field = "tool_choice", .tools = names_of(asked)};
    const std::string call = written_call(model.format->traits().response.calls.front());
    grammar::Constraint constraint(forced_call(wish, asked, model));
    for (const TokenId token : text.tokenizer.encode(call, {.add_special = false, .parse_special = true}))
      ASSERT_TRUE(constraint.advance(token)) << call;
    EXPECT_TRUE(constraint.may_end()) << call;
  }
}

TEST(CallGrammar, StrictToolsAreKeptToWhereverTheModelCalls) {
  const ModelText text = text_with(kTemplateCases[1].source());
  const ServedModel model = model_of(text);
  const Conversation asked = conversation(true);
  EXPECT_EQ(free_calls(nullptr, conversation(false), false, model), nullptr);
  const auto grammar = free_calls(nullptr, asked, false, model);
  ASSERT_NE(grammar, nullptr);
  std::mt19937 random(4);
  std::vector<std::string> words = closing_words(model.format->traits().response);
  for (int i = 0; i < 6; ++i) words.emplace_back("<tool_call>");
  uint32_t calls = 0;
  for (int i = 0; i < 120; ++i) {
    const auto said = sample(grammar, text.tokenizer, words, random, false);
    if (!said) continue;
    const WholeOutput output =
        parse_response(model.format->traits().response,
                       {.start = {}, .types = ArgumentTypes(tools_json(asked.tools))}, *said);
    SCOPED_TRACE(*said);
    for (const ToolCall& call : output.calls) {
      ++calls;
      const auto tool = std::ranges::find(asked.tools, call.name, &ToolSpec::name);
      ASSERT_NE(tool, asked.tools.end());
      EXPECT_TRUE(is_valid(tool->parameters, parse_ordered_json(call.arguments, "arguments")))
          << call.arguments;
    }
  }
  EXPECT_GT(calls, 10u);
}

TEST(CallGrammar, AnAnswerThatKeepsToASchemaMayStillCall) {
  const ModelText text = text_with(kTemplateCases[0].source());
  const ServedModel model = model_of(text);
  const auto schema = text.compile_grammar({grammar::GrammarSource::Kind::json_schema, R"({"const": 5})"});
  const auto grammar = free_calls(schema, conversation(false), true, model);
  ASSERT_NE(grammar, schema);
  EXPECT_TRUE(grammar->accepts("5"));
  EXPECT_FALSE(grammar->accepts("6"));
  grammar::Constraint constraint(grammar);
  for (const TokenId token :
       text.tokenizer.encode("<tool_call>{\"name\": \"tool1\", \"arguments\": {}}</tool_call>",
                             {.add_special = false, .parse_special = true}))
    ASSERT_TRUE(constraint.advance(token));
  EXPECT_TRUE(constraint.may_end());
}

TEST(CallGrammar, WhatAFormCannotCarryIsRefusedInASentence) {
  const ModelText tags = text_with(kTemplateCases[1].source()),
                  python = text_with(kTemplateCases[12].source());
  const auto problem = [](const ModelText& text, const char* schema) {
    Conversation asked;
    asked.tools.push_back(
        {.name = "f", .description = "", .parameters = OrderedJson::parse(schema), .strict = true});
    ConstraintWish wish{.kind = ConstraintWish::Kind::tool_call, .field = "tool_choice", .tools = {"f"}};
    try {
      forced_call(wish, asked, model_of(text));
    } catch (const ApiError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  constexpr const char* kName = R"({"type": "object", "properties": {"a b": {}}, "required": ["a b"]})";
  EXPECT_THAT(problem(tags, kName), HasSubstr("'a b'"));
  EXPECT_THAT(problem(python, kName), HasSubstr("'a b'"));
  EXPECT_THAT(problem(tags, R"({"enum": [{"a": 1}]})"), HasSubstr("whole objects"));
  EXPECT_EQ(problem(tags, R"({"type": "object", "properties": {"a b": {}}})"), "");
}

}  // namespace
}  // namespace quire
