#pragma once

#include <memory>

#include "engine/model_text.h"
#include "openai/json_fields.h"

namespace quire {

// What an answer keeps to. Throws ApiError that names the field.
std::shared_ptr<grammar::Grammar> compiled(const grammar::GrammarSource& source, const std::string& field,
                                           const ModelText& text);

// What an answer has to keep to, under every name that clients use for it: `response_format`, `guided_json`, `guided_regex`,
// `guided_choice`, `guided_grammar`, `structured_outputs`, and llama.cpp's `json_schema` and `grammar`. Null if none is there. Throws
// ApiError that names the field, and what of it cannot be followed.
std::shared_ptr<grammar::Grammar> read_grammar(const JsonFields& fields, const ModelText& text);

}  // namespace quire
