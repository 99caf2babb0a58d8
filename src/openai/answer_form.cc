#include "openai/answer_form.h"

#include "openai/api_error.h"
#include "openai/call_grammar.h"
#include "openai/grammar_fields.h"

namespace quire {
namespace {

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
void answer_at_once(const ServedModel& model, Ask& ask) {
  const ResponseTemplate& response = model.format->traits().response;
  ResponseStart& start = ask.parse->start;
  std::string more;
  if (response.channels && !response.declared) {
    if (!start.header.empty()) return;  // the prompt says itself what the answer is
    more = start.header = "<|channel|>final<|message|>";
  } else if (start.reasoning >= 0) {
    more = "\n" + response.reasoning[size_t(start.reasoning)].close + "\n\n";
    start.reasoning = -1;
    if (response.declared) start.begun += more;
  }
  if (more.empty()) return;
  const std::vector<TokenId> tokens =
      model.text->tokenizer.encode(more, {.add_special = false, .parse_special = true});
  for (std::vector<TokenId>& prompt : ask.prompts) prompt.insert(prompt.end(), tokens.begin(), tokens.end());
}

}  // namespace

void keep_to(const ConstraintWish& wish, const Conversation& conversation, const ServedModel& model,
             Ask& ask) {
  std::shared_ptr<grammar::Grammar>& grammar = ask.request.grammar;
  bool at_once = true;
  if (wish.kind != ConstraintWish::Kind::none) {
    if (grammar != nullptr)
      bad_field(wish.field, "'{}' and another field cannot both say what the answer keeps to", wish.field);
    if (wish.kind == ConstraintWish::Kind::tool_call) {
      grammar = forced_call(wish, conversation, model);
      at_once = !forced_form(model)->names_the_answer;
    } else {
      grammar = compiled(source_of(wish), wish.field, *model.text);
    }
  }
  const bool may_call = ask.parse && ask.parse->calls && wish.kind != ConstraintWish::Kind::tool_call;
  if (may_call && model.format && !conversation.tools.empty()) {
    at_once =
        at_once && grammar != nullptr;  // what says only how calls are made leaves the model its reasoning
    grammar = free_calls(std::move(grammar), conversation, ask.one_call, model);
  }
  if (grammar != nullptr && ask.parse && at_once) answer_at_once(model, ask);
}

}  // namespace quire
