#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "openai/openai_request.h"

namespace quire {

// What every part of one response says alike.
struct ResponseHead {
  AskKind kind = AskKind::chat;
  std::string id;       // "chatcmpl-..." or "cmpl-..."
  int64_t created = 0;  // seconds since 1970
  std::string model;
  std::string fingerprint;  // of all that tokens depend on: the model, the kernels, the KV format
};

// Tokens of one answer that are sent together.
struct AnswerPart {
  uint32_t choice = 0;
  std::string text;
  std::vector<TokenEvent> tokens = {};  // with their logprobs, if asked for
  size_t text_offset = 0;  // of the first token in the whole text, in characters as Python counts them
};

struct Usage {
  uint64_t prompt_tokens = 0, answer_tokens = 0, cached_tokens = 0;
};

OrderedJson usage_json(const Usage& usage);

// One event of a stream. `finish` empty: it goes on.
OrderedJson first_chunk(const ResponseHead& head, uint32_t choice);  // chats only: the role
OrderedJson part_chunk(const ResponseHead& head, const AnswerPart& part, const Request& request,
                       const Tokenizer& tokenizer);
OrderedJson last_chunk(const ResponseHead& head, uint32_t choice, std::string_view finish);
OrderedJson usage_chunk(const ResponseHead& head, const Usage& usage);

// A whole answer, one part per choice.
struct WholeAnswer {
  AnswerPart part;
  std::string finish;
};
OrderedJson whole_response(const ResponseHead& head, std::span<const WholeAnswer> answers,
                           const Request& request, const Tokenizer& tokenizer, const Usage& usage);

// The extra object: where the time went, what was cached and why not more, what it means.
OrderedJson report_json(const std::string& id, const Answer& answer);

// One line of server-sent events.
std::string sse_event(const OrderedJson& data);
inline constexpr std::string_view kSseDone = "data: [DONE]\n\n";

// As text that is valid whatever came in.
std::string dump(const OrderedJson& json);

// How many characters a text has.
size_t count_characters(std::string_view text);

}  // namespace quire
