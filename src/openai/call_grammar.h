#pragma once

#include <memory>

#include "chat/constraint_wish.h"
#include "chat/conversation.h"
#include "grammar/call_rules.h"
#include "grammar/grammar.h"
#include "openai/openai_request.h"

namespace quire {

// How a model writes a call, for a grammar; nothing if it writes them in no form that one can be made of.
struct ForcedForm {
  grammar::CallForm form;
  std::string trigger = {};       // what a call begins with wherever it stands; empty: it is not announced
  bool names_the_answer = false;  // it holds the header of the message too
};
std::optional<ForcedForm> forced_form(const ServedModel& model);

// A call of one of the wish's tools and nothing else. Throws ApiError that names the field.
std::shared_ptr<grammar::Grammar> forced_call(const ConstraintWish& wish, const Conversation& conversation,
                                              const ServedModel& model);

// What an answer keeps to that may call: calls of tools that are strict have arguments of their schemas. `form`: what it keeps to
// if it does not call; null: nothing. Null if nobody asks for anything, or this model's calls are announced by nothing.
std::shared_ptr<grammar::Grammar> free_calls(std::shared_ptr<grammar::Grammar> form,
                                             const Conversation& conversation, bool one_call,
                                             const ServedModel& model);

}  // namespace quire
