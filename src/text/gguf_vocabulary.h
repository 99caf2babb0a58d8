#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "text/tokenizer_spec.h"

namespace quire {

// What a GGUF file says of its tokenizer: the tokenizer.ggml.* keys, each under its own name.
struct GgufVocabulary {
  std::string model;  // "gpt2", "llama", "t5", "gemma4"
  std::string pre;    // empty: the file does not say
  std::vector<std::string> tokens;
  std::vector<float> scores;         // empty, or one per token
  std::vector<int32_t> token_types;  // empty, or one per token; see TokenKind
  std::vector<std::string> merges;   // "left right"
  std::optional<uint32_t> bos_token_id;
  std::optional<uint32_t> eos_token_id;
  std::optional<uint32_t> eot_token_id;
  std::optional<uint32_t> eom_token_id;
  std::optional<uint32_t> unknown_token_id;
  std::optional<uint32_t> padding_token_id;
  std::optional<bool> add_bos_token;
  std::optional<bool> add_eos_token;
  std::optional<bool> add_space_prefix;
  std::optional<bool> remove_extra_whitespaces;
  std::string precompiled_charsmap;  // bytes
};

// Encodes as llama.cpp does with the same file. Throws Error for what it does not know, naming it.
TokenizerSpec tokenizer_spec_from_gguf(GgufVocabulary vocabulary);

// The same tokenizer for a GGUF file. The name of its pre-tokenizer is found by what it does; throws Error if
// GGUF has no name for it, or no way to say the rest.
GgufVocabulary gguf_vocabulary_from_spec(const TokenizerSpec& spec);

}  // namespace quire
