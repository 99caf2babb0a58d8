#pragma once

#include <string>
#include <vector>

#include "model/metadata.h"

namespace quire {

// A byte-level vocabulary for models that were never trained: bytes, words, and the special tokens of a small chat
// format of its own.
struct SynthVocabulary {
  std::vector<std::string> tokens;
  std::vector<int64_t> types;
  std::vector<std::string> merges;
  uint32_t first_word = 0;  // after the bytes
  uint32_t bos = 0;
  uint32_t eos = 0;
};

// `size` tokens: as words every string of two, three and four small letters in order, then names without meaning.
SynthVocabulary make_synth_vocabulary(uint32_t size);
// The given words, which text is never cut into: nothing merges to them.
SynthVocabulary make_synth_vocabulary(const std::vector<std::string>& words);

// Puts it into the metadata of a GGUF file, with a chat template.
void set_vocabulary(const SynthVocabulary& vocabulary, Metadata& metadata);

}  // namespace quire
