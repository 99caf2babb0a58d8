#include "server/request_steps.h"

#include <algorithm>
#include <cmath>

#include "text/utf8.h"

namespace quire {
namespace {

class StepsReader {
 public:
  explicit StepsReader(const RequestRecord& record) : record_(record), account_(record.answer.account) {}

  RequestSteps read() {
    steps_.prompt_tokens = uint32_t(record_.prompt.size());
    steps_.cached_tokens = account_.cached_tokens;
    steps_.pruned_tokens = account_.pruned_tokens;
    for (size_t i = 0; i < record_.token_ms.size(); ++i) add_token(i);
    add_chunks(INFINITY);
    return std::move(steps_);
  }

 private:
  // The chunks that began before that moment; false if there was none.
  bool add_chunks(double before_ms) {
    const size_t begin = next_chunk_;
    for (; next_chunk_ < account_.prefill.size(); ++next_chunk_) {
      const RequestAccount::Chunk& chunk = account_.prefill[next_chunk_];
      if (chunk.at_ms >= before_ms) break;
      RequestSteps::Pass pass;
      pass.prefill = true;
      pass.at_ms = record_.submitted_ms + chunk.at_ms;
      pass.ms = chunk.took_ms;
      pass.tokens = chunk.tokens;
      pass.entries_before = chunk.entries_before;
      pass.entries_after = chunk.entries_after;
      if (account_.pruned_tokens == 0 && account_.forgotten_tokens == 0)
        pass.fed = tokens_from(chunk.entries_before, chunk.tokens);
      steps_.passes.push_back(std::move(pass));
    }
    return next_chunk_ > begin;
  }

  std::vector<TokenId> tokens_from(size_t begin, size_t count) const {
    std::vector<TokenId> tokens;
    for (size_t i = begin; i < begin + std::min(count, RequestSteps::kMostFed); ++i) {
      if (i < record_.prompt.size()) {
        tokens.push_back(record_.prompt[i]);
      } else if (i - record_.prompt.size() < record_.answer.tokens.size()) {
        tokens.push_back(record_.answer.tokens[i - record_.prompt.size()]);
      }
    }
    return tokens;
  }

  // Token `i` of the answer was drawn by a chunk that ended with it, by the pass before it, or by one that was fed the
  // token before.
  void add_token(size_t i) {
    const bool same_pass = i > 0 && i <= account_.gaps.size() && account_.gaps[i - 1].same_pass;
    if (!add_chunks(record_.token_ms[i]) && !same_pass && i > 0) {
      RequestSteps::Pass pass;
      pass.at_ms = record_.submitted_ms + record_.token_ms[i];
      pass.ms = record_.token_ms[i] - record_.token_ms[i - 1];
      pass.entries_before = steps_.passes.empty() ? 0 : steps_.passes.back().entries_after;
      if (account_.budget_rows > 0 && pass.entries_before >= account_.budget_rows)
        pass.entries_before -= account_.budget_step;  // which have gone since
      steps_.passes.push_back(std::move(pass));
    }
    if (steps_.passes.empty()) return;
    RequestSteps::Pass& pass = steps_.passes.back();
    if (!pass.prefill) {
      ++pass.tokens;
      pass.entries_after = pass.entries_before + pass.tokens;
      if (pass.fed.size() < RequestSteps::kMostFed) pass.fed.push_back(record_.answer.tokens[i - 1]);
    }
    RequestSteps::Drawn drawn;
    drawn.token = record_.answer.tokens[i];
    if (i < record_.answer.logprobs.size()) drawn.logprob = record_.answer.logprobs[i];
    if (i < record_.rivals.size()) drawn.rivals = record_.rivals[i];
    pass.drawn.push_back(std::move(drawn));
  }

  const RequestRecord& record_;
  const RequestAccount& account_;
  RequestSteps steps_;
  size_t next_chunk_ = 0;
};

std::string text_of(const Tokenizer& tokenizer, std::span<const TokenId> tokens) {
  return replace_broken_utf8(tokenizer.decode(tokens, Tokenizer::Special::keep));
}

OrderedJson token_json(const Tokenizer& tokenizer, TokenId token, std::optional<float> logprob) {
  OrderedJson json = {{"id", token}, {"text", text_of(tokenizer, {&token, 1})}, {"probability", nullptr}};
  if (logprob) json["probability"] = std::exp(double(*logprob));
  return json;
}

OrderedJson pass_json(const RequestSteps::Pass& pass, const Tokenizer& tokenizer) {
  OrderedJson json = {{"phase", pass.prefill ? "prefill" : "decode"},
                      {"at_ms", pass.at_ms},
                      {"ms", pass.ms},
                      {"tokens", pass.tokens},
                      {"text", nullptr},
                      {"entries_before", pass.entries_before},
                      {"entries_after", pass.entries_after},
                      {"draws", pass.drawn.size()},
                      {"drawn", OrderedJson::array()}};
  if (!pass.fed.empty())
    json["text"] = text_of(tokenizer, pass.fed) + (pass.fed.size() < pass.tokens ? "…" : "");
  for (const RequestSteps::Drawn& drawn : pass.drawn) {
    OrderedJson token = token_json(tokenizer, drawn.token, drawn.logprob);
    token["rivals"] = OrderedJson::array();
    for (const TokenLogprob& rival : drawn.rivals)
      token["rivals"].push_back(token_json(tokenizer, rival.token, rival.logprob));
    json["drawn"].push_back(std::move(token));
  }
  return json;
}

}  // namespace

RequestSteps all_steps_of(const RequestRecord& record) {
  return StepsReader(record).read();
}

RequestSteps steps_of(const RequestRecord& record) {
  RequestSteps steps = all_steps_of(record);
  if (steps.passes.size() > RequestSteps::kMostPasses) {
    steps.skipped = steps.passes.size() - RequestSteps::kMostPasses;
    steps.passes.erase(steps.passes.begin(), steps.passes.begin() + ptrdiff_t(steps.skipped));
  }
  return steps;
}

OrderedJson steps_json(const std::string& id, const RequestSteps& steps, const Tokenizer& tokenizer) {
  OrderedJson passes = OrderedJson::array();
  for (const RequestSteps::Pass& pass : steps.passes) passes.push_back(pass_json(pass, tokenizer));
  return {{"id", id},
          {"prompt_tokens", steps.prompt_tokens},
          {"cached_tokens", steps.cached_tokens},
          {"pruned_tokens", steps.pruned_tokens},
          {"skipped", steps.skipped},
          {"passes", std::move(passes)}};
}

}  // namespace quire
