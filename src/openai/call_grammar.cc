#include "openai/call_grammar.h"

#include <algorithm>

#include "base/error.h"
#include "chat/argument_types.h"
#include "chat/call_matcher.h"
#include "chat/declared_form.h"
#include "grammar/token_trie.h"
#include "openai/api_error.h"
#include "openai/grammar_fields.h"

namespace quire {
namespace {

static_assert(kAnyText == grammar::kAnyWord && kSameKey == grammar::kItsKey);

// As a grammar has it: where the form has special tokens, those and not their letters.
std::string with_special_tokens(std::string_view literal, const ServedModel& model) {
  std::string result;
  while (!literal.empty()) {
    std::string_view longest;
    TokenId token = 0;
    for (const TokenId id : model.format_tokens) {
      const std::string_view spelled = model.text->tokenizer.token(id);
      if (!literal.starts_with(spelled) || spelled.size() <= longest.size()) continue;
      longest = spelled;
      token = id;
    }
    result += longest.empty() ? std::string(1, literal.front()) : grammar::special_token_bytes(token);
    literal.remove_prefix(std::max<size_t>(1, longest.size()));
  }
  return result;
}

std::string with_any(std::string literal, const std::string& any) {
  if (any.empty()) return literal;
  for (size_t at; (at = literal.find(kAnyText)) != std::string::npos;) literal.replace(at, 1, any);
  return literal;
}

grammar::CallForm grammar_form(const CallForm& form, const ServedModel& model) {
  using Body = CallForm::Body;
  using Written = grammar::CallForm::Body;
  grammar::CallForm forced;
  const std::string open = form.section_open + form.open, close = form.close + form.section_close;
  forced.before = open;
  forced.between = form.name_end;
  forced.after = close;
  switch (form.body) {
    case Body::json:
      forced.before =
          open + (form.list ? "[" : "") + (form.name_key.empty() ? "{\"" : "{\"" + form.name_key + "\": \"");
      forced.between = form.name_key.empty() ? "\": " : "\", \"" + form.arguments_key + "\": ";
      forced.after = (form.list ? "}]" : "}") + close;
      break;
    case Body::named_json:
      break;
    case Body::tags: {
      forced.body = Written::tags;
      forced.key_open = form.key_open;
      forced.key_end = with_any(form.key_end, form.any_text);
      if (form.any_json != form.any_text) forced.key_end_of_json = with_any(form.key_end, form.any_json);
      forced.value_end = form.value_end;
      forced.value_on_lines = form.value_on_lines;
      const size_t begin = std::min(form.value_end.find_first_not_of(" \n\t\r"), form.value_end.size());
      const std::string end = form.value_end.substr(begin);
      const std::string word = end.substr(0, end.find_first_of(std::string(" \n\t\r") + kAnyText + kSameKey));
      if (!word.empty()) forced.never = {word};
      break;
    }
    case Body::loose:
      forced.body = Written::loose;
      forced.quote = form.quote;
      if (!form.quote.empty()) forced.never = {form.quote};
      break;
    case Body::python:
      forced.body = Written::python;
      forced.before = open + "[";
      forced.between = "";
      forced.after = "]" + close;
      break;
  }
  for (std::string* literal : {&forced.before, &forced.between, &forced.after, &forced.key_open,
                               &forced.key_end, &forced.key_end_of_json, &forced.value_end, &forced.quote})
    *literal = with_special_tokens(*literal, model);
  return forced;
}

grammar::CallRules rules_for(const ForcedForm& form, const Conversation& conversation,
                             const std::vector<std::string>* names) {
  grammar::CallRules calls{.tools = {}, .form = form.form, .trigger = form.trigger};
  const ArgumentTypes types(tools_json(conversation.tools));
  for (const ToolSpec& tool : conversation.tools) {
    if (names != nullptr && std::ranges::find(*names, tool.name) == names->end()) continue;
    grammar::Tool& added = calls.tools.emplace_back(grammar::Tool{tool.name, tool.parameters, {}});
    for (auto& [key, known] : types.all_of(tool.name)) added.types.emplace_back(key, known);
  }
  return calls;
}

}  // namespace

std::optional<ForcedForm> forced_form(const ServedModel& model) {
  const ResponseTemplate& response = model.format->traits().response;
  ForcedForm forced;
  if (response.channels && !response.declared) {
    if (!response.calls.empty()) return std::nullopt;
    forced.names_the_answer = true;
    forced.form.before = with_special_tokens("<|channel|>commentary to=functions.", model);
    forced.form.between = with_special_tokens(" <|constrain|>json<|message|>", model);
    forced.form.after = "";
    forced.form.never.assign(std::begin(kMessageMarks), std::end(kMessageMarks));
    return forced;
  }
  if (response.calls.empty()) return std::nullopt;
  const CallForm& form = response.calls.front();
  forced.form = grammar_form(form, model);
  if (response.declared) {  // which may end a call wherever its end stands
    for (const std::string& end : response.declared->call_ends()) forced.form.never.push_back(end);
    const std::string close =
        form.close.substr(0, form.close.find_first_of(std::string(" \n\t\r") + kAnyText));
    if (!close.empty() && form.close.find_first_not_of("}]) \n") != std::string::npos)
      forced.form.never.push_back(close);
  }
  forced.trigger = with_special_tokens(call_trigger(form, false), model);
  return forced;
}

std::shared_ptr<grammar::Grammar> forced_call(const ConstraintWish& wish, const Conversation& conversation,
                                              const ServedModel& model) {
  const auto form = forced_form(model);
  if (!form)
    not_built(wish.field,
              "making this model call a tool, as no form of its calls is known that could be forced,");
  grammar::CallRules calls = rules_for(*form, conversation, &wish.tools);
  try {
    return model.text->compile_grammar(grammar::call_source(calls));
  } catch (const grammar::NoGrammarRoom&) {
    return compiled(grammar::call_source(calls), wish.field, *model.text);
  } catch (const Error& error) {
    const bool strict = std::ranges::any_of(conversation.tools, [&](const ToolSpec& tool) {
      return tool.strict && std::ranges::find(wish.tools, tool.name) != wish.tools.end();
    });
    if (strict) bad_field(wish.field, "'{}': {}", wish.field, error.what());
  }
  calls.strict = false;  // nobody asked that the arguments keep to a schema, and this one cannot be kept to
  return compiled(grammar::call_source(calls), wish.field, *model.text);
}

std::shared_ptr<grammar::Grammar> free_calls(std::shared_ptr<grammar::Grammar> form,
                                             const Conversation& conversation, bool one_call,
                                             const ServedModel& model) {
  const bool strict = std::ranges::any_of(conversation.tools, &ToolSpec::strict);
  const bool is_schema = form != nullptr && form->source().kind == grammar::GrammarSource::Kind::json_schema;
  if (form == nullptr ? !strict : !is_schema) return form;
  const auto forced = forced_form(model);
  if (!forced || forced->names_the_answer || (forced->trigger.empty() && form == nullptr)) return form;
  grammar::CallRules calls = rules_for(*forced, conversation, nullptr);
  for (size_t i = 0; i < calls.tools.size(); ++i) {
    if (!conversation.tools[i].strict) calls.tools[i].parameters = nullptr;
  }
  calls.most_calls = one_call ? 1 : grammar::kAnyNumber;
  if (is_schema) {
    calls.or_else = parse_ordered_json(form->source().text, "the schema");
  } else {
    calls.place = grammar::CallPlace::after_text;
  }
  return compiled(grammar::call_source(calls), "tools", *model.text);
}

}  // namespace quire
