#pragma once

#include "openai/openai_request.h"

namespace quire {

// A request of Anthropic's Messages API, understood and checked. Throws ApiError naming the field that is wrong.
Ask parse_anthropic_messages(const OrderedJson& body, const ServedModel& model);

// How many tokens its prompt has.
uint64_t count_anthropic_tokens(const OrderedJson& body, const ServedModel& model);

}  // namespace quire
