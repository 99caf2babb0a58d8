#include "openai/vector_writer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>

#include "base/check.h"
#include "engine/pooled_rows.h"

namespace quire {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

// Of what it may say, "yes" and "no" alone are compared.
double share_of_yes(const WholeAnswer& answer) {
  CHECK(answer.part.tokens.size() == 1 && answer.part.tokens.front().watched.size() == 2);
  const std::vector<TokenRank>& said = answer.part.tokens.front().watched;
  return 1 / (1 + std::exp(said[0].loss - said[1].loss));
}

OrderedJson vector_usage_json(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens}, {"total_tokens", usage.prompt_tokens}};
}

}  // namespace

void append_numbers(std::span<const float> vector, std::string& out) {
  out += '[';
  for (size_t i = 0; i < vector.size(); ++i) {
    if (i > 0) out += ',';
    if (std::isfinite(vector[i]))
      fmt::format_to(std::back_inserter(out), "{}", vector[i]);
    else
      out += "null";
  }
  out += ']';
}

void append_base64(std::span<const float> vector, std::string& out) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(vector.data());
  const size_t count = vector.size_bytes();
  for (size_t i = 0; i < count; i += 3) {
    uint32_t three = 0;
    for (size_t b = 0; b < 3; ++b) three = three << 8 | (i + b < count ? bytes[i + b] : 0u);
    for (size_t d = 0; d < 4; ++d)
      out += i + d <= count ? kDigits[three >> (18 - 6 * d) & 63] : '=';  // of n bytes there are n + 1 digits
  }
}

std::string embeddings_json(const VectorAsk& asked, const std::vector<WholeAnswer>& answers,
                            const Usage& usage, const ServedModel& model) {
  std::string out = R"({"object":"list","data":[)";
  for (size_t i = 0; i < answers.size(); ++i) {
    const std::vector<float> vector = as_unit(answers[i].vector, asked.width);
    fmt::format_to(std::back_inserter(out), R"({}{{"object":"embedding","index":{},"embedding":)",
                   i > 0 ? "," : "", i);
    if (asked.base64) {
      out += '"';
      append_base64(vector, out);
      out += '"';
    } else {
      append_numbers(vector, out);
    }
    out += '}';
  }
  out +=
      R"(],"model":)" + dump(OrderedJson(model.name)) + R"(,"usage":)" + dump(vector_usage_json(usage)) + "}";
  return out;
}

OrderedJson rerank_json(const RerankAsk& asked, const std::vector<WholeAnswer>& answers, const Usage& usage,
                        const ServedModel& model) {
  const size_t first = asked.judges ? 0 : 1;  // of the documents
  std::vector<std::pair<double, size_t>> scored;
  for (size_t i = first; i < answers.size(); ++i) {
    const double score =
        asked.judges ? share_of_yes(answers[i]) : cosine(answers[0].vector, answers[i].vector);
    scored.emplace_back(score, i - first);
  }
  std::ranges::stable_sort(scored, [](const auto& a, const auto& b) { return a.first > b.first; });
  scored.resize(std::min(scored.size(), asked.best));
  OrderedJson results = OrderedJson::array();
  for (const auto& [score, index] : scored) {
    OrderedJson result = {{"index", index}, {"relevance_score", score}};
    if (asked.with_documents) result["document"] = {{"text", asked.documents[index]}};
    results.push_back(std::move(result));
  }
  return {{"object", "list"},
          {"model", model.name},
          {"usage", vector_usage_json(usage)},
          {"results", std::move(results)}};
}

}  // namespace quire
