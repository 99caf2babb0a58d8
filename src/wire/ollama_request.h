#pragma once

#include "openai/openai_request.h"

namespace quire {

// Requests of Ollama's API, understood and checked. Throw ApiError naming the field that is wrong. They stream unless they
// say otherwise.
Ask parse_ollama_chat(const OrderedJson& body, const ServedModel& model);
// A prompt and perhaps a system message; `raw`: a text to be continued as it is.
Ask parse_ollama_generate(const OrderedJson& body, const ServedModel& model);

// Throws ApiError if another model is asked for; Ollama's names may end in ":latest".
void check_ollama_model(const OrderedJson& body, const ServedModel& model);

// What the model is, for lists and for /api/show.
OrderedJson ollama_model_json(const ServedModel& model);
OrderedJson ollama_show_json(const ServedModel& model);

}  // namespace quire
