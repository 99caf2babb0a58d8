#pragma once

#include <functional>

#include "openai/openai_request.h"

namespace quire {

// All that was said up to a response that was stored, as items. Throws ApiError if there is none of that id.
using FindItems = std::function<OrderedJson(const std::string& id)>;

// A request of OpenAI's Responses API, understood and checked. Throws ApiError naming the field that is wrong or not built yet.
Ask parse_responses(const OrderedJson& body, const ServedModel& model, const FindItems& find);

}  // namespace quire
