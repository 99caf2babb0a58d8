#include "openai/vector_request.h"

#include <cmath>

#include "openai/json_fields.h"
#include "openai/rerank_prompt.h"

namespace quire {
namespace {

bool judges_pairs(const ServedModel& model) {
  return model.pooling == Pooling::rank;
}

const std::string& document_text(const OrderedJson& document, const std::string& field) {
  const OrderedJson* text = &document;
  if (document.is_object() && document.contains("text")) text = &document["text"];
  if (!text->is_string()) bad_field(field, "'{}' must be a text, or an object with one in 'text'", field);
  return text->get_ref<const std::string&>();
}

Ask judging_ask(const JudgeTokens& tokens) {
  Ask ask;
  ask.kind = AskKind::scores;
  ask.request.sampling.temperature = 0;
  ask.request.max_tokens = 1;
  ask.request.logprobs = true;
  ask.request.watched = {tokens.yes, tokens.no};
  return ask;
}

}  // namespace

Ask vectors_ask(const ServedModel& model) {
  if (judges_pairs(model))
    throw ApiError(
        400, "model", "no_embeddings",
        fmt::format("the model '{}' judges pairs of texts (/v1/rerank): it makes no vectors", model.name));
  Ask ask;
  ask.kind = AskKind::vectors;
  ask.request.embedding = {.pooling = model.pooling.value_or(Pooling::last), .on_vector = {}};
  return ask;
}

uint32_t read_width(const JsonFields& fields, const ServedModel& model) {
  const auto width = fields.integer("dimensions", 1, INT32_MAX);
  if (width && *width > int64_t(model.width))
    bad_field("dimensions", "'dimensions' is {}, but the model's vectors have {} numbers", *width,
              model.width);
  return uint32_t(width.value_or(0));
}

VectorAsk parse_embeddings(const OrderedJson& body, const ServedModel& model) {
  const JsonFields fields(body);
  check_model(fields, model);
  VectorAsk asked{.ask = vectors_ask(model), .width = read_width(fields, model)};
  const std::string encoding = fields.text("encoding_format").value_or("float");
  if (encoding != "float" && encoding != "base64")
    bad_field("encoding_format", "'encoding_format' must be float or base64");
  asked.base64 = encoding == "base64";
  read_asker(fields, asked.ask);
  read_texts(fields.get("input"), "input", asked.ask, [&](const OrderedJson& text, const std::string& field) {
    return read_text(text, field, model);
  });
  return asked;
}

RerankAsk parse_rerank(const OrderedJson& body, const ServedModel& model) {
  const JsonFields fields(body);
  check_model(fields, model);
  if (!model.pooling) {
    throw ApiError(
        400, "model", "no_rerank",
        fmt::format("the model '{}' does not say that it ranks texts or makes vectors of them; "
                    "`quire serve --pooling rank` says so of one that answers yes or no as "
                    "Qwen3-Reranker does, --pooling last or mean of one whose vectors are compared",
                    model.name));
  }
  RerankAsk asked;
  asked.judges = judges_pairs(model);
  const auto query = fields.text("query");
  if (!query) bad_field("query", "'query' is missing");
  const OrderedJson& documents = fields.get("documents");
  if (!documents.is_array() || documents.empty() || documents.size() >= kMostTexts)
    bad_field("documents", "'documents' must be a list of 1 to {} texts", kMostTexts - 1);
  const std::string instruction = fields.text("instruction").value_or("");
  const auto best = fields.integer("top_n", 1, INT32_MAX);
  asked.best = size_t(best.value_or(int64_t(documents.size())));
  asked.with_documents = fields.boolean("return_documents").value_or(false);
  asked.ask = asked.judges ? judging_ask(judge_tokens(model)) : vectors_ask(model);
  read_asker(fields, asked.ask);
  if (!asked.judges) asked.ask.prompts.push_back(read_text(fields.get("query"), "query", model));
  size_t tokens = 0;
  for (size_t i = 0; i < documents.size(); ++i) {
    const std::string field = fmt::format("documents[{}]", i);
    const std::string& text = document_text(documents[i], field);
    if (asked.with_documents) asked.documents.push_back(text);
    asked.ask.prompts.push_back(
        asked.judges
            ? judge_prompt({.instruction = instruction, .query = *query, .document = text}, field, model)
            : read_text(text, field, model));
    tokens += asked.ask.prompts.back().size();
    if (tokens > kMostRankedTokens)
      bad_field("documents",
                "'documents' and the query before each of them have more than {} tokens; send fewer at once",
                kMostRankedTokens);
  }
  return asked;
}

double cosine(std::span<const float> a, std::span<const float> b) {
  double both = 0, of_a = 0, of_b = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    both += double(a[i]) * double(b[i]);
    of_a += double(a[i]) * double(a[i]);
    of_b += double(b[i]) * double(b[i]);
  }
  const double lengths = std::sqrt(of_a) * std::sqrt(of_b);
  return lengths > 0 ? both / lengths : 0;
}

}  // namespace quire
