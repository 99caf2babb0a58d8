#include "cli/answer_line.h"

#include <fmt/format.h>

#include "cli/model_options.h"

namespace quire::cli {

std::string answer_line(const Answer& answer, const Engine& engine) {
  const Timings& t = answer.timings;
  std::string line = fmt::format("[{} prompt + {} answer tokens | first token {:.0f} ms ({:.0f} tok/s)",
                                 answer.prompt_tokens, answer.tokens.size(), t.ttft_ms, t.prefill_tok_s);
  if (answer.tokens.size() > 1) {
    line += fmt::format(" | then {:.1f} ms each ({:.1f} tok/s)", t.itl_ms_p50, t.decode_tok_s);
  }
  line += fmt::format(" | KV {} per token, {} in {}]\n", human_bytes(engine.kv().layout().bytes_per_token()),
                      human_bytes(answer.kv_bytes), counted(answer.kv_pages, "page"));
  if (answer.context_full) {
    line += fmt::format("[stopped: the context of {} tokens is full; a larger one is asked for with --ctx]\n",
                        engine.context());
  }
  return line;
}

OrderedJson answer_json(const Answer& answer, const Engine& engine, const std::string& kv_format) {
  const Timings& t = answer.timings;
  return {{"text", answer.text},
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
            {"bytes", answer.kv_bytes}}}};
}

}  // namespace quire::cli
