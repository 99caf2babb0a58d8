#pragma once

#include "chat/constraint_wish.h"
#include "chat/conversation.h"
#include "openai/openai_request.h"

namespace quire {

// Makes the answer keep to the form that a request wishes, whatever API it came by. A model that was about to reason answers at
// once, since the form begins with the first token. REQUIRES: the ask has its conversation. Throws ApiError that names the field.
void keep_to(const ConstraintWish& wish, const Conversation& conversation, const ServedModel& model,
             Ask& ask);

}  // namespace quire
