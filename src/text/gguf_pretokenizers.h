#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer_spec.h"

namespace quire {

// What a name in tokenizer.ggml.pre stands for.
struct GgufPretokenizer {
  std::vector<PretokenizerStep> steps;
  bool ignore_merges = false;
  bool add_bos = false;
  bool byte_level = true;  // false: spaces become U+2581, unknown characters their <0xXX> tokens
};

// Throws Error for a name it does not know.
GgufPretokenizer find_gguf_pretokenizer(const std::string& name);

// A name whose pre-tokenizer cuts texts the same way; nothing if GGUF has none.
std::optional<std::string> name_gguf_pretokenizer(const std::vector<PretokenizerStep>& steps,
                                                  bool ignore_merges);

}  // namespace quire
