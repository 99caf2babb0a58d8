#pragma once

#include "model/metadata.h"
#include "text/gguf_vocabulary.h"

namespace quire {

// The tokenizer.ggml.* keys of a file as text's own struct, and back.
GgufVocabulary read_gguf_vocabulary(const Metadata& metadata);
void write_gguf_vocabulary(const GgufVocabulary& vocabulary, Metadata& metadata);

}  // namespace quire
