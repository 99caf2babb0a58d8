#include "openai/openai_response.h"

#include <algorithm>
#include <map>

#include "engine/verdict.h"
#include "text/detokenizer.h"
#include "text/utf8.h"

namespace quire {
namespace {

std::string object_name(const ResponseHead& head, bool chunk) {
  if (head.kind == AskKind::completion) return "text_completion";
  return chunk ? "chat.completion.chunk" : "chat.completion";
}

OrderedJson token_json(TokenId token, float logprob, const Tokenizer& tokenizer) {
  const std::string bytes = tokenizer.decode(std::span(&token, 1), Tokenizer::Special::keep);
  OrderedJson numbers = OrderedJson::array();
  for (const char byte : bytes) numbers.push_back(static_cast<unsigned char>(byte));
  return {{"token", replace_broken_utf8(bytes)},
          {"logprob", std::max(logprob, -9999.0f)},
          {"bytes", std::move(numbers)}};
}

OrderedJson chat_logprobs(const AnswerPart& part, const Tokenizer& tokenizer) {
  OrderedJson content = OrderedJson::array();
  for (const TokenEvent& event : part.tokens) {
    OrderedJson entry = token_json(event.token, event.logprob, tokenizer);
    entry["top_logprobs"] = OrderedJson::array();
    for (const TokenLogprob& other : event.top_logprobs)
      entry["top_logprobs"].push_back(token_json(other.token, other.logprob, tokenizer));
    content.push_back(std::move(entry));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

// Whoever compares the best with the token itself finds the same number where they are the same.
OrderedJson top_of_score(const PromptScore& score, const Tokenizer& tokenizer) {
  OrderedJson others = OrderedJson::object();
  for (const TokenLogprob& other : score.top_logprobs)
    others[token_json(other.token, 0, tokenizer)["token"].get<std::string>()] =
        other.token == score.token ? -score.loss : double(std::max(other.logprob, -9999.0f));
  return others;
}

OrderedJson completion_logprobs(const AnswerPart& part, const Request& request, const Tokenizer& tokenizer) {
  OrderedJson tokens = OrderedJson::array(), logprobs = OrderedJson::array(), top = OrderedJson::array(),
              offsets = OrderedJson::array();
  size_t offset = part.text_offset;
  Detokenizer prompt(tokenizer);
  for (const PromptScore& score : part.prompt) {
    const bool is_first = score.position == 0;  // which nothing predicts
    tokens.push_back(token_json(score.token, 0, tokenizer)["token"]);
    logprobs.push_back(is_first ? OrderedJson() : OrderedJson(-score.loss));
    top.push_back(is_first ? OrderedJson() : top_of_score(score, tokenizer));
    offsets.push_back(offset);
    offset += count_characters(prompt.push(score.token));
  }
  offset += count_characters(prompt.finish());
  for (const TokenEvent& event : part.tokens) {
    OrderedJson own = token_json(event.token, event.logprob, tokenizer);
    offsets.push_back(offset);
    offset += count_characters(event.text);
    OrderedJson others = OrderedJson::object();
    for (const TokenLogprob& other : event.top_logprobs)
      others[token_json(other.token, 0, tokenizer)["token"].get<std::string>()] =
          std::max(other.logprob, -9999.0f);
    tokens.push_back(std::move(own["token"]));
    logprobs.push_back(own["logprob"]);
    top.push_back(std::move(others));
  }
  return {{"tokens", std::move(tokens)},
          {"token_logprobs", std::move(logprobs)},
          {"top_logprobs", request.top_logprobs > 0 ? std::move(top) : OrderedJson()},
          {"text_offset", std::move(offsets)}};
}

}  // namespace

OrderedJson usage_json(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.answer_tokens},
          {"total_tokens", usage.prompt_tokens + usage.answer_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}}};
}

OrderedJson response_body(const ResponseHead& head, bool chunk, OrderedJson choices) {
  return {{"id", head.id},       {"object", object_name(head, chunk)},     {"created", head.created},
          {"model", head.model}, {"system_fingerprint", head.fingerprint}, {"choices", std::move(choices)}};
}

OrderedJson logprobs_json(AskKind kind, const AnswerPart& part, const Request& request,
                          const Tokenizer& tokenizer) {
  if (!request.logprobs) return nullptr;
  return kind == AskKind::chat ? chat_logprobs(part, tokenizer)
                               : completion_logprobs(part, request, tokenizer);
}

namespace {

OrderedJson kv_json(const Answer& answer) {
  OrderedJson json = {{"pages", answer.kv_pages}, {"bytes", answer.kv_bytes}};
  if (const auto& kept = answer.account.kept) {
    json["policy"] = name(kept->policy);
    json["kept"] = kept->share;
    if (kept->answers > 0) json["measured_answers"] = kept->answers;
    if (!kept->document.empty()) json["document"] = kept->document;
  }
  if (const RequestAccount& account = answer.account; account.budget_rows > 0) {
    json["budget_rows"] = account.budget_rows;
    json["forgotten_tokens"] = account.forgotten_tokens;
    json["counted_anew"] = account.counted_anew;
  }
  return json;
}

}  // namespace

OrderedJson report_json(const std::string& id, const Answer& answer) {
  const Timings& t = answer.timings;
  const RequestAccount& account = answer.account;
  OrderedJson causes = OrderedJson::object();
  for (const RequestAccount::Gap& gap : account.gaps) {
    const std::string cause(name(gap.cause));
    causes[cause] = causes.value(cause, 0) + 1;
  }
  return {{"id", id},
          {"timings",
           {{"queue_ms", account.queue_ms},
            {"host_ms", account.host_ms},
            {"disk_ms", account.disk_ms},
            {"remote_ms", account.remote_ms},
            {"choosing_ms", account.choosing_ms},
            {"ttft_ms", t.ttft_ms},
            {"itl_ms_p50", t.itl_ms_p50},
            {"itl_ms_p99", t.itl_ms_p99},
            {"prefill_tok_s", t.prefill_tok_s},
            {"decode_tok_s", t.decode_tok_s}}},
          {"cache",
           {{"cached_tokens", account.cached_tokens},
            {"host_tokens", account.host_tokens},
            {"disk_tokens", account.disk_tokens},
            {"remote_tokens", account.remote_tokens},
            {"store", text(account.store)},
            {"computed_tokens", answer.prompt_tokens - std::min(answer.prompt_tokens, account.cached_tokens)},
            {"why", account.miss.text()}}},
          {"kv", kv_json(answer)},
          {"gap_causes", std::move(causes)},
          {"preemptions", account.preemptions},
          {"drafted", account.drafted},
          {"accepted", account.accepted},
          {"pruned_tokens", account.pruned_tokens},
          {"verdict", judge(answer).lines}};
}

std::string dump(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

std::string sse_event(const OrderedJson& data) {
  return "data: " + dump(data) + "\n\n";
}

size_t count_characters(std::string_view text) {
  return size_t(
      std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

}  // namespace quire
