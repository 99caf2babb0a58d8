#pragma once

#include "base/clock.h"
#include "openai/answer_writer.h"
#include "openai/openai_request.h"
#include "openai/openai_response.h"

namespace quire {

// Ollama's answers: a JSON object a line. What it is made of must outlive it.
class OllamaWriter : public AnswerWriter {
 public:
  OllamaWriter(ResponseHead head, const Ask& ask);

  std::string_view stream_type() const override { return "application/x-ndjson"; }
  std::string_view keep_alive() const override { return {}; }  // lines of JSON have no words for it
  void begin(uint32_t choice, std::string& out) override;
  void part(const AnswerPart& part, std::string& out) override;
  void end(uint32_t choice, const AnswerEnd& end, std::string& out) override;
  void done(const Usage& usage, const OrderedJson& report, std::string& out) override;
  void failed(const ApiError& error, std::string& out) override;
  OrderedJson whole(std::vector<WholeAnswer> answers, const Usage& usage, const OrderedJson& report) override;

 private:
  OrderedJson line(const WholeOutput& said) const;
  void add_end(OrderedJson& line, const Usage& usage) const;

  const ResponseHead head_;
  const Ask& ask_;
  const Clock::time_point begin_ = Clock::now();
  ToolCall call_;  // that is coming
  AnswerEnd end_;
};

// As Ollama writes a moment: RFC 3339.
std::string ollama_time(int64_t seconds_since_1970);

}  // namespace quire
