#pragma once

#include <optional>

#include "openai/answer_writer.h"
#include "openai/openai_request.h"
#include "openai/openai_response.h"

namespace quire {

// OpenAI's Responses. An item is the same, its ids too, where it begins, where it ends and in the whole response; a response
// that is not streamed is what its stream would have come to. What it is made of must outlive it.
class ResponsesWriter : public AnswerWriter {
 public:
  ResponsesWriter(ResponseHead head, const Ask& ask, const Tokenizer& tokenizer);

  void begin(uint32_t choice, std::string& out) override;
  void part(const AnswerPart& part, std::string& out) override;
  void end(uint32_t choice, const AnswerEnd& end, std::string& out) override;
  void done(const Usage& usage, const OrderedJson& report, std::string& out) override;
  void failed(const ApiError& error, std::string& out) override;
  OrderedJson whole(std::vector<WholeAnswer> answers, const Usage& usage, const OrderedJson& report) override;

 private:
  OrderedJson response(const char* status) const;
  OrderedJson complete(const Usage& usage) const;
  OrderedJson usage_of(const Usage& usage) const;
  bool cut_off() const { return end_.reason == FinishReason::length; }
  void keep(const OrderedJson& response) const;
  void say(const char* type, OrderedJson data, std::string& out);
  // Of the item that is open: where it is, and what the event adds.
  OrderedJson place(const char* field, OrderedJson value) const;
  OrderedJson place_in_content(const char* field, OrderedJson value) const;
  std::string& open_text();
  void open_item(OutputEvent::Kind kind, const std::string& name, std::string& out);
  void add_text(OutputEvent::Kind kind, const std::string& text, std::string& out);
  void add_arguments(const std::string& text, std::string& out);
  void close_item(std::string& out);

  const ResponseHead head_;
  const Ask& ask_;
  const Tokenizer& tokenizer_;
  OrderedJson output_ = OrderedJson::array();  // the last item may be open
  std::optional<OutputEvent::Kind> open_;
  std::string arguments_;  // of the call that is
  uint64_t next_ = 0;      // the number of the next event
  bool answered_ = false;  // there is more than reasoning
  AnswerEnd end_;
};

}  // namespace quire
