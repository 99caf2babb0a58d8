#include "cli/answer_line.h"

#include <fmt/format.h>

#include "cli/model_options.h"
#include "engine/verdict.h"

namespace quire::cli {

std::string answer_line(const Answer& answer, const Engine& engine) {
  const Timings& t = answer.timings;
  std::string line = fmt::format("[{} prompt + {} answer tokens | first token {:.0f} ms ({:.0f} tok/s)",
                                 answer.prompt_tokens, answer.tokens.size(), t.ttft_ms, t.prefill_tok_s);
  if (answer.tokens.size() > 1) {
    line += fmt::format(" | then {:.1f} ms each ({:.1f} tok/s)", 1000 / t.decode_tok_s, t.decode_tok_s);
  }
  line += fmt::format(" | KV {} per token, {} in {}]\n", human_bytes(engine.kv().layout().bytes_per_token()),
                      human_bytes(answer.kv_bytes), counted(answer.kv_pages, "page"));
  if (answer.account.pruned_tokens > 0) {
    line += fmt::format("[pruned: of {} tokens of prompt, {} are not in the KV cache]\n",
                        answer.prompt_tokens, answer.account.pruned_tokens);
  }
  line += forgotten_line(answer);
  if (answer.context_full) {
    line += fmt::format("[stopped: the context of {} tokens is full; a larger one is asked for with --ctx]\n",
                        engine.context());
  }
  for (const std::string& words : judge(answer).lines) line += fmt::format("[{}]\n", words);
  return line;
}

std::string forgotten_line(const Answer& answer) {
  const RequestAccount& account = answer.account;
  if (account.forgotten_tokens == 0) return "";
  // The last token was drawn and never computed.
  const size_t computed = answer.prompt_tokens + answer.tokens.size() - 1;
  std::string line = fmt::format("[forgotten: of {} tokens each head has let go {}, as its budget is {} rows",
                                 computed, account.forgotten_tokens, account.budget_rows);
  if (account.counted_anew > 0) {
    line += fmt::format("; positions were counted anew {}",
                        account.counted_anew == 1 ? "once" : fmt::format("{} times", account.counted_anew));
  }
  return line + "]\n";
}

namespace {

OrderedJson account_json(const Answer& answer) {
  const RequestAccount& account = answer.account;
  OrderedJson chunks = OrderedJson::array(), causes = OrderedJson::object();
  for (const RequestAccount::Chunk& chunk : account.prefill)
    chunks.push_back({{"at_ms", chunk.at_ms}, {"took_ms", chunk.took_ms}, {"tokens", chunk.tokens}});
  for (const RequestAccount::Gap& gap : account.gaps) {
    const std::string cause(name(gap.cause));
    causes[cause] = causes.value(cause, 0) + 1;
  }
  return {{"queue_ms", account.queue_ms},           {"cached_tokens", account.cached_tokens},
          {"host_tokens", account.host_tokens},     {"disk_tokens", account.disk_tokens},
          {"remote_tokens", account.remote_tokens}, {"cache_miss", account.miss.text()},
          {"prefill_chunks", std::move(chunks)},    {"gap_causes", std::move(causes)},
          {"preemptions", account.preemptions},     {"drafted", account.drafted},
          {"accepted", account.accepted},           {"pruned_tokens", account.pruned_tokens},
          {"choosing_ms", account.choosing_ms},     {"verdict", judge(answer).lines}};
}

}  // namespace

OrderedJson answer_json(const Answer& answer, const Engine& engine, const std::string& kv_format) {
  const Timings& t = answer.timings;
  OrderedJson json = {{"text", answer.text},
                      {"token_ids", answer.tokens},
                      {"prompt_tokens", answer.prompt_tokens},
                      {"completion_tokens", answer.tokens.size()},
                      {"finish_reason", name(answer.finish_reason)},
                      {"context_full", answer.context_full},
                      {"timings",
                       {{"ttft_ms", t.ttft_ms},
                        {"itl_ms_p50", t.itl_ms_p50},
                        {"itl_ms_p99", t.itl_ms_p99},
                        {"prefill_tok_s", t.prefill_tok_s},
                        {"decode_tok_s", t.decode_tok_s}}},
                      {"kv",
                       {{"format", kv_format},
                        {"bytes_per_token", engine.kv().layout().bytes_per_token()},
                        {"pages", answer.kv_pages},
                        {"bytes", answer.kv_bytes}}},
                      {"account", account_json(answer)}};
  if (const RequestAccount& account = answer.account; account.budget_rows > 0) {
    json["kv"]["budget_rows"] = account.budget_rows;
    json["kv"]["forgotten_tokens"] = account.forgotten_tokens;
    json["kv"]["counted_anew"] = account.counted_anew;
  }
  return json;
}

}  // namespace quire::cli
