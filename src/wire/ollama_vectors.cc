#include "wire/ollama_vectors.h"

#include <algorithm>

#include "engine/pooled_rows.h"
#include "openai/json_fields.h"
#include "text/utf8.h"
#include "wire/ollama_request.h"

namespace quire {
namespace {

// As many bytes as its first `tokens` tokens can have, and no broken character behind them.
std::string_view first_bytes(std::string_view text, size_t tokens, const Tokenizer& tokenizer) {
  const size_t most = tokens * std::max<size_t>(1, tokenizer.longest_token_bytes());
  if (text.size() <= most) return text;
  size_t end = most;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end);
}

// What its tokenizer puts behind a text stays behind one that was cut.
std::vector<TokenId> cut(const std::string& text, const ServedModel& model) {
  const Tokenizer& tokenizer = model.text->tokenizer;
  std::vector<TokenId> tokens = tokenizer.encode(first_bytes(text, model.context, tokenizer));
  if (tokens.size() <= model.context) return tokens;
  const std::vector<TokenId> added = tokenizer.encode("");
  const TokenId last = tokens.back();
  tokens.resize(model.context);
  if (!added.empty() && added.back() == last) tokens.back() = last;
  return tokens;
}

VectorAsk ollama_vectors(const OrderedJson& body, const ServedModel& model) {
  check_ollama_model(body, model);
  VectorAsk asked;
  asked.ask = vectors_ask(model);
  asked.ask.api = Api::ollama;
  return asked;
}

}  // namespace

VectorAsk parse_ollama_embed(const OrderedJson& body, const ServedModel& model) {
  const JsonFields fields(body);
  VectorAsk asked = ollama_vectors(body, model);
  asked.width = read_width(fields, model);
  const bool cuts = fields.boolean("truncate").value_or(true);
  read_texts(fields.get("input"), "input", asked.ask, [&](const OrderedJson& text, const std::string& field) {
    if (!text.is_string()) bad_field(field, "'{}' must be a text or a list of texts", field);
    if (!cuts) return read_text(text, field, model);
    std::vector<TokenId> tokens = cut(text.get_ref<const std::string&>(), model);
    if (tokens.empty()) bad_field(field, "'{}' is empty", field);
    return tokens;
  });
  return asked;
}

VectorAsk parse_ollama_embeddings(const OrderedJson& body, const ServedModel& model) {
  const JsonFields fields(body);
  VectorAsk asked = ollama_vectors(body, model);
  if (!fields.get("prompt").is_string()) bad_field("prompt", "'prompt' must be a text");
  asked.ask.prompts.push_back(cut(*fields.text("prompt"), model));
  if (asked.ask.prompts.front().empty()) bad_field("prompt", "'prompt' is empty");
  return asked;
}

std::string ollama_embed_json(const VectorAsk& asked, const std::vector<WholeAnswer>& answers,
                              const Usage& usage, const ServedModel& model) {
  std::string out = R"({"model":)" + dump(OrderedJson(model.name)) + R"(,"embeddings":[)";
  for (size_t i = 0; i < answers.size(); ++i) {
    if (i > 0) out += ',';
    append_numbers(as_unit(answers[i].vector, asked.width), out);
  }
  return out + fmt::format(R"(],"total_duration":0,"load_duration":0,"prompt_eval_count":{}}})",
                           usage.prompt_tokens);
}

std::string ollama_embeddings_json(const VectorAsk& asked, const std::vector<WholeAnswer>& answers,
                                   const Usage&, const ServedModel&) {
  std::string out = R"({"embedding":)";
  append_numbers(as_unit(answers.at(0).vector, asked.width), out);
  return out + "}";
}

}  // namespace quire
