#pragma once

#include <optional>

#include "openai/answer_writer.h"
#include "openai/openai_request.h"
#include "openai/openai_response.h"

namespace quire {

// Anthropic's Messages. What it is made of must outlive it.
class AnthropicWriter : public AnswerWriter {
 public:
  AnthropicWriter(ResponseHead head, const Ask& ask);

  std::string_view keep_alive() const override { return "event: ping\ndata: {\"type\": \"ping\"}\n\n"; }
  void begin(uint32_t choice, std::string& out) override;
  void part(const AnswerPart& part, std::string& out) override;
  void end(uint32_t choice, const AnswerEnd& end, std::string& out) override;
  void done(const Usage& usage, const OrderedJson& report, std::string& out) override;
  void failed(const ApiError& error, std::string& out) override;
  OrderedJson whole(std::vector<WholeAnswer> answers, const Usage& usage, const OrderedJson& report) override;

 private:
  OrderedJson message(OrderedJson content, const Usage& usage, const AnswerEnd* end) const;
  void open_block(OutputEvent::Kind kind, const std::string& name, std::string& out);
  void close_block(std::string& out);
  void add_delta(OrderedJson delta, std::string& out) const;

  const ResponseHead head_;
  const Ask& ask_;
  std::optional<OutputEvent::Kind> block_;  // that is open
  uint32_t blocks_ = 0;                     // that were opened
  AnswerEnd end_;
};

// An error in their shape.
OrderedJson anthropic_error(const ApiError& error);

}  // namespace quire
