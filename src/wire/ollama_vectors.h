#pragma once

#include "openai/vector_writer.h"

namespace quire {

// Texts that are to become vectors, as Ollama's API has it: what is too long is cut, unless `truncate` is false. Throw ApiError
// naming the field that is wrong.
VectorAsk parse_ollama_embed(const OrderedJson& body, const ServedModel& model);
// The same of its first form: one text, in `prompt`.
VectorAsk parse_ollama_embeddings(const OrderedJson& body, const ServedModel& model);

std::string ollama_embed_json(const VectorAsk& asked, const std::vector<WholeAnswer>& answers,
                              const Usage& usage, const ServedModel& model);
std::string ollama_embeddings_json(const VectorAsk& asked, const std::vector<WholeAnswer>& answers,
                                   const Usage& usage, const ServedModel& model);

}  // namespace quire
