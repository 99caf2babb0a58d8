#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "openai/api_error.h"
#include "openai/openai_request.h"

namespace quire {

// Texts that are to become vectors, understood and checked.
struct VectorAsk {
  Ask ask;             // a prompt for each text
  uint32_t width = 0;  // of the vectors; 0: the model's
  bool base64 = false;
};

// Texts that are to be judged by what a query asks for.
struct RerankAsk {
  // A prompt for the query and each document: what is closer to the query's vector is better. Or, of a model that judges pairs,
  // one for each document: how much likelier "yes" is than "no".
  Ask ask;
  bool judges = false;
  size_t best = 0;  // so many are told
  bool with_documents = false;
  std::vector<OrderedJson> documents;
};

// Throw ApiError naming the field that is wrong.
VectorAsk parse_embeddings(const OrderedJson& body, const ServedModel& model);
RerankAsk parse_rerank(const OrderedJson& body, const ServedModel& model);

// For those who read requests of other APIs: the ask of texts whose prompts come next. Throws ApiError if the model makes no
// vectors.
Ask vectors_ask(const ServedModel& model);
// Texts, one or a list of them; each read by `read(text, field)`.
template <class Read>
void read_texts(const OrderedJson& input, const std::string& field, Ask& ask, const Read& read);
// How wide the vectors are to be: 0 if nobody says so.
uint32_t read_width(const JsonFields& fields, const ServedModel& model);

// What a text is closest to: the cosine of two vectors, of which neither need be of length 1.
double cosine(std::span<const float> a, std::span<const float> b);

inline constexpr size_t kMostTexts = 2048;  // of one request
// Of one request to rank: its query stands before each of its documents, so a short body could ask for any number.
inline constexpr size_t kMostRankedTokens = size_t{1} << 20;

template <class Read>
void read_texts(const OrderedJson& input, const std::string& field, Ask& ask, const Read& read) {
  if (input.is_null()) bad_field(field, "'{}' is missing", field);
  if (!input.is_array() || is_token_list(input)) {
    ask.prompts.push_back(read(input, field));
    return;
  }
  if (input.empty() || input.size() > kMostTexts)
    bad_field(field, "'{}' has {} texts; 1 to {} are allowed", field, input.size(), kMostTexts);
  for (size_t i = 0; i < input.size(); ++i)
    ask.prompts.push_back(read(input[i], fmt::format("{}[{}]", field, i)));
}

}  // namespace quire
