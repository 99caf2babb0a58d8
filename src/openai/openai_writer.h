#pragma once

#include "openai/answer_writer.h"
#include "openai/openai_request.h"
#include "openai/openai_response.h"

namespace quire {

// Chat completions and completions. What it is made of must outlive it.
class OpenAiWriter : public AnswerWriter {
 public:
  OpenAiWriter(ResponseHead head, const Ask& ask, const Tokenizer& tokenizer);

  void begin(uint32_t choice, std::string& out) override;
  void part(const AnswerPart& part, std::string& out) override;
  void end(uint32_t choice, const AnswerEnd& end, std::string& out) override;
  void done(const Usage& usage, const OrderedJson& report, std::string& out) override;
  void failed(const ApiError& error, std::string& out) override;
  OrderedJson whole(std::vector<WholeAnswer> answers, const Usage& usage, const OrderedJson& report) override;

 private:
  void add(OrderedJson event, std::string& out) const;
  OrderedJson chunk(uint32_t choice, OrderedJson content, OrderedJson logprobs,
                    std::string_view finish) const;
  OrderedJson message(const AnswerPart& part);

  const ResponseHead head_;
  const Ask& ask_;
  const Tokenizer& tokenizer_;
};

}  // namespace quire
