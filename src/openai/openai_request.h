#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "chat/chat_format.h"
#include "chat/conversation.h"
#include "engine/model_text.h"
#include "engine/request.h"
#include "openai/json_fields.h"

namespace quire {

// The model that is served, as far as requests need to know it. Immutable; any thread may use it.
struct ServedModel {
  std::string name;
  const ModelText* text = nullptr;
  uint32_t vocab = 0;
  uint32_t context = 0;
  int64_t created = 0;                         // seconds since 1970
  std::optional<PruningOptions> pruning = {};  // of requests that do not say it themselves
  // What a prompt keeps where nobody says how much but how well (--kv-keep auto); nothing: all. Empty: it cannot be asked for. The engine's
  // thread calls it.
  std::function<std::optional<PruningOptions>(std::span<const TokenId>)> choose_kept = {};
  bool chooses_kept = false;                      // of requests that do not say it themselves
  std::optional<BudgetOptions> budget = {};       // the same
  bool pins_system = true;                        // where nobody says how much of a budget is pinned
  EvaluatorHeads evaluator = {};                  // of the model, if they are known
  std::shared_ptr<const ChatFormat> format = {};  // null: the model has no chat template
  std::vector<TokenId> format_tokens = {};        // special tokens that the format is written in; in order
  std::optional<Pooling> pooling = {};            // of texts that become vectors, if somebody has said it
  uint32_t width = 0;                             // of those vectors
};

// With the format of its chat template, if it has one.
ServedModel with_chat_format(ServedModel model);

struct ResponsesTurn;  // wire/responses_turn.h

enum class AskKind : uint8_t { chat, completion, vectors, scores };
// Whose words the answer is written in.
enum class Api : uint8_t { openai, responses, anthropic, ollama };

// A request of the API, understood and checked.
struct Ask {
  AskKind kind = AskKind::chat;
  Api api = Api::openai;
  std::optional<ResponseOptions> parse;  // how a chat's answer is read; nothing: as it is
  bool one_call = false;                 // calls after the first are left out
  bool return_token_ids = false;
  std::vector<std::vector<TokenId>> prompts;  // several only for completions
  Request request;                            // all but its prompt and its salt
  std::string cache_salt;                     // that it brings; empty: none
  uint32_t choices = 1;                       // for each prompt
  bool stream = false;
  bool include_usage = false;     // in a stream
  bool echo = false;              // the prompt comes first in the answer
  bool prompt_only = false;       // no answer is wanted: `echo` with max_tokens 0
  bool score_prompt = false;      // with `echo`: how likely each of the prompt's tokens was
  bool leave_out_answer = false;  // only what is said of the prompt is wanted
  bool chooses_kept = false;      // each of its prompts keeps what the model's curve says
  std::string document = {};      // text that its first message begins with, pruned for itself; empty: none
  uint32_t document_tokens = 0;   // of the prompt
  bool pins_system = false;       // the system's words are pinned of its budget
  bool report = false;            // timings, verdict and cache explanation are wanted
  bool resume = false;  // a stream that can be read again while it is on its way, and for a while after
  std::optional<double> deadline_ms;
  std::shared_ptr<ResponsesTurn> turn = {};  // of the Responses API; else null

  // It is said rather than computed from: it can be looked at while it is, and afterwards.
  bool is_text() const { return kind == AskKind::chat || kind == AskKind::completion; }
  // Each token is told of by itself.
  bool wants_tokens() const { return request.logprobs || return_token_ids; }
  uint32_t answers() const { return uint32_t(prompts.size()) * choices; }
};

// Throw ApiError naming the field that is wrong or not built yet. Fields that nobody knows are ignored.
Ask parse_chat(const OrderedJson& body, const ServedModel& model);
Ask parse_completion(const OrderedJson& body, const ServedModel& model);

// Gives the ask its prompt: the conversation as the model's template writes it, and how its answer is to be read.
// `field`: of the request, for what is wrong with it.
void set_conversation(Ask& ask, const Conversation& conversation, bool calls, const ServedModel& model,
                      const std::string& field);

// The same for a text, a list of texts, token ids or lists of them.
void set_prompt(Ask& ask, const OrderedJson& prompt, const ServedModel& model);

// What is kept of one of its prompts. The engine's thread calls it, where the model chooses.
std::optional<PruningOptions> pruning_of(const Ask& ask, std::span<const TokenId> prompt,
                                         const ServedModel& model);
// Whether a chat's body names a document (quire.kv_document).
bool begins_with_document(const OrderedJson& body);

// A prompt alone, for tokenizing, look-up and pins: `prompt` or `content` (a text or token ids), or `messages`.
std::vector<TokenId> parse_prompt(const OrderedJson& body, const ServedModel& model);

// A text or a list of token ids that nothing is to follow. Throws ApiError if it does not fit the context.
std::vector<TokenId> read_text(const OrderedJson& text, const std::string& field, const ServedModel& model);
bool is_token_list(const OrderedJson& text);

// Who asks, and how it is to be treated among others: `user`, `cache_salt`, `quire.priority` and `quire.deadline_ms`.
void read_asker(const JsonFields& fields, Ask& ask);

// What a prompt shares pages under besides its client; empty: nothing more.
std::string parse_cache_salt(const OrderedJson& body);

// The sampling fields and limits of a completion without any prompt, for forks.
Ask parse_continuation(const OrderedJson& body, const ServedModel& model);

// Sampling, stops and limits as a model's own defaults have them, with a seed of their own.
void set_sampling_defaults(Ask& ask, const ServedModel& model);
// Throws ApiError if another model is asked for.
void check_model(const JsonFields& fields, const ServedModel& model);

// Throws ApiError if the body is not a JSON object.
OrderedJson parse_body(std::string_view body);

}  // namespace quire
