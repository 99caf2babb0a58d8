#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "chat/output_event.h"
#include "engine/request.h"
#include "openai/api_error.h"

namespace quire {

// Tokens of one answer that are sent together, and what they say.
struct AnswerPart {
  uint32_t choice = 0;
  OutputEvents events = {};
  std::vector<TokenEvent> tokens = {};  // if each of them is asked for
  std::vector<PromptScore> prompt =
      {};                  // of an echoed prompt: one for each of its tokens, if they are asked for
  size_t text_offset = 0;  // of the first token in the whole text, in characters as Python counts them

  bool empty() const { return events.empty() && tokens.empty(); }
};

// Why an answer ended.
struct AnswerEnd {
  FinishReason reason = FinishReason::stop;
  bool called = false;    // tools, at least one
  std::string stop = {};  // the stop text that ended it, if one did
  uint64_t tokens = 0;
  std::optional<HandOver> hand_over = {};  // of one that somebody else goes on with
};

struct Usage {
  uint64_t prompt_tokens = 0, answer_tokens = 0, cached_tokens = 0;
};

struct WholeAnswer {
  AnswerPart part;
  AnswerEnd end;
  std::vector<float> vector = {};  // in place of all else, of a text that becomes one
};

// Says an answer in the words of one API. One per request, on the server's thread or a worker's, never on two at once.
class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;

  virtual std::string_view stream_type() const { return "text/event-stream"; }
  // What a stream may say while there is nothing to say, so that nobody on the way takes it for dead; empty: nothing.
  virtual std::string_view keep_alive() const { return ": keep-alive\n\n"; }
  // The pieces of a stream, appended to `out`. `begin` comes once for each choice, before its parts; `end` once, behind them.
  virtual void begin(uint32_t choice, std::string& out) = 0;
  virtual void part(const AnswerPart& part, std::string& out) = 0;
  virtual void end(uint32_t choice, const AnswerEnd& end, std::string& out) = 0;
  // Behind all choices. `report`: null, or the extra object.
  virtual void done(const Usage& usage, const OrderedJson& report, std::string& out) = 0;
  virtual void failed(const ApiError& error, std::string& out) = 0;

  // Not as a stream. The answers are not needed any more.
  virtual OrderedJson whole(std::vector<WholeAnswer> answers, const Usage& usage,
                            const OrderedJson& report) = 0;
};

}  // namespace quire
