#pragma once

#include <string>

#include "base/json.h"
#include "chat/conversation.h"

namespace quire {

// Adds items of the Responses API to a conversation: messages, calls, their results, reasoning. What stands side by side
// and is the assistant's becomes one message, as models wrote it. Throws ApiError that names the item.
void add_response_items(const OrderedJson& items, const std::string& place, Conversation& conversation);

// The list of items that `input` stands for: a text is what the user says. Throws ApiError.
OrderedJson response_input_items(const OrderedJson& input);

}  // namespace quire
