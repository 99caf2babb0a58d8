#pragma once

#include "chat/constraint_wish.h"
#include "chat/conversation.h"
#include "openai/json_fields.h"

namespace quire {

// What a chat completion's fields say about the conversation. Throw ApiError naming the field that is wrong.
Conversation read_conversation(const JsonFields& fields);

enum class CallPolicy : uint8_t {
  none,  // calls are not looked for
  any,   // the model may call
};
// `conversation`: with its tools.
CallPolicy read_call_policy(const JsonFields& fields, const Conversation& conversation);

// Whether it must be a call, and of what. Forms that are not calls are read by read_grammar.
ConstraintWish read_constraint(const JsonFields& fields, const Conversation& conversation);

}  // namespace quire
