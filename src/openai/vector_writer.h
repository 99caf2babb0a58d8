#pragma once

#include <span>
#include <string>
#include <vector>

#include "openai/answer_writer.h"
#include "openai/openai_response.h"
#include "openai/vector_request.h"

namespace quire {

// Vectors as JSON, written without a tree: there may be millions of numbers. Each is the shortest that is read as the same float.
void append_numbers(std::span<const float> vector, std::string& out);
// The bytes of the floats, the lowest first.
void append_base64(std::span<const float> vector, std::string& out);

// What is said of texts that became vectors, or that were judged, one answer for each prompt of the ask.
std::string embeddings_json(const VectorAsk& asked, const std::vector<WholeAnswer>& answers,
                            const Usage& usage, const ServedModel& model);
OrderedJson rerank_json(const RerankAsk& asked, const std::vector<WholeAnswer>& answers, const Usage& usage,
                        const ServedModel& model);

}  // namespace quire
