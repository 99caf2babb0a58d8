#pragma once

#include <string_view>

#include "text/tokenizer_spec.h"

namespace quire {

// The tokenizer of a model folder: the contents of tokenizer.json, and of tokenizer_config.json (which may be
// empty) for the names of BOS, EOS and padding. Encodes and decodes as the Hugging Face tokenizers library
// does. Throws Error for what it does not know, naming it.
TokenizerSpec tokenizer_spec_from_json(std::string_view tokenizer_json,
                                       std::string_view tokenizer_config_json);

}  // namespace quire
