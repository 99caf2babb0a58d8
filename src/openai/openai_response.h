#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "openai/answer_writer.h"
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

OrderedJson usage_json(const Usage& usage);

// A response with its choices; of a stream, one event of it.
OrderedJson response_body(const ResponseHead& head, bool chunk, OrderedJson choices);
// Null if they are not asked for.
OrderedJson logprobs_json(AskKind kind, const AnswerPart& part, const Request& request,
                          const Tokenizer& tokenizer);

// "call_..."
std::string new_call_id();

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
