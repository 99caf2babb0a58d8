#include "openai/answer_form.h"

#include <algorithm>

#include "base/error.h"
#include "grammar/call_rules.h"
#include "grammar/token_trie.h"
#include "openai/api_error.h"

namespace quire {
namespace {

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

bool can_be_forced(const CallForm& form) {
  const bool is_json =
      form.body == CallForm::Body::json && !form.name_key.empty() && !form.arguments_key.empty();
  const std::string all = form.section_open + form.open + form.name_end + form.close + form.section_close;
  return (is_json || form.body == CallForm::Body::named_json) && all.find(kAnyText) == std::string::npos &&
         all.find(kSameKey) == std::string::npos;
}

grammar::CallForm forced_form(const CallForm& form, const ServedModel& model) {
  grammar::CallForm forced;
  const std::string open = form.section_open + form.open, close = form.close + form.section_close;
  if (form.body == CallForm::Body::json) {
    forced.before = open + "{\"" + form.name_key + "\": \"";
    forced.between = "\", \"" + form.arguments_key + "\": ";
    forced.after = "}" + close;
  } else {
    forced.before = open;
    forced.between = form.name_end;
    forced.after = close;
  }
  for (std::string* literal : {&forced.before, &forced.between, &forced.after})
    *literal = with_special_tokens(*literal, model);
  return forced;
}

std::shared_ptr<grammar::Grammar> call_grammar(const ConstraintWish& wish, const Conversation& conversation,
                                               const ServedModel& model) {
  const std::vector<CallForm>& forms = model.format->traits().response.calls;
  const auto form = std::ranges::find_if(forms, can_be_forced);
  if (form == forms.end())
    not_built(wish.field, "making this model call a tool, as it does not write calls as JSON,");
  grammar::CallRules calls{.tools = {}, .form = forced_form(*form, model)};
  bool strict = false;
  for (const ToolSpec& tool : conversation.tools) {
    if (std::ranges::find(wish.tools, tool.name) == wish.tools.end()) continue;
    calls.tools.push_back({tool.name, tool.parameters});
    strict = strict || tool.strict;
  }
  try {
    return model.text->compile_grammar(grammar::call_source(calls));
  } catch (const Error& error) {
    if (strict) bad_field(wish.field, "'{}': {}", wish.field, error.what());
  }
  calls.strict = false;  // nobody asked that the arguments keep to a schema, and this one cannot be kept to
  return model.text->compile_grammar(grammar::call_source(calls));
}

grammar::GrammarSource source_of(const ConstraintWish& wish) {
  using Source = grammar::GrammarSource;
  switch (wish.kind) {
    case ConstraintWish::Kind::json_schema:
      if (wish.schema.is_null()) bad_field(wish.field, "'{}' has no schema", wish.field);
      return {Source::Kind::json_schema, wish.schema.dump()};
    case ConstraintWish::Kind::regex:
      return {Source::Kind::regex, wish.text};
    case ConstraintWish::Kind::grammar:
      return {Source::Kind::grammar, wish.text};
    case ConstraintWish::Kind::choice:
      return Source::choice(wish.choices);
    default:
      return Source::json_object();
  }
}

// What the prompt has opened is closed again: the answer itself comes next.
void answer_at_once(const std::string& field, const ServedModel& model, Ask& ask) {
  const ResponseTemplate& response = model.format->traits().response;
  if (response.channels) not_built(field, "the form of an answer, for models that write in channels,");
  const int32_t opened = ask.parse->start.reasoning;
  if (opened < 0) return;
  const std::vector<TokenId> close =
      model.text->tokenizer.encode("\n" + response.reasoning[size_t(opened)].close + "\n\n",
                                   {.add_special = false, .parse_special = true});
  for (std::vector<TokenId>& prompt : ask.prompts) prompt.insert(prompt.end(), close.begin(), close.end());
  ask.parse->start.reasoning = -1;
}

}  // namespace

void keep_to(const ConstraintWish& wish, const Conversation& conversation, const ServedModel& model,
             Ask& ask) {
  std::shared_ptr<grammar::Grammar>& grammar = ask.request.grammar;
  if (wish.kind != ConstraintWish::Kind::none) {
    if (grammar != nullptr)
      bad_field(wish.field, "'{}' and another field cannot both say what the answer keeps to", wish.field);
    if (wish.kind == ConstraintWish::Kind::tool_call) {
      grammar = call_grammar(wish, conversation, model);
    } else {
      try {
        grammar = model.text->compile_grammar(source_of(wish));
      } catch (const Error& error) {
        bad_field(wish.field, "'{}': {}", wish.field, error.what());
      }
    }
  }
  if (grammar != nullptr && ask.parse)
    answer_at_once(wish.field.empty() ? "response_format" : wish.field, model, ask);
}

}  // namespace quire
