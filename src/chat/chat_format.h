#pragma once

#include <memory>
#include <string>

#include "chat/response_parser.h"
#include "chat/response_template.h"
#include "text/chat_template.h"

namespace quire {

// What a chat template does with conversations that have tools, found by rendering.
struct TemplateTraits {
  enum class Arguments : uint8_t { object, text };
  bool lists_tools = false;     // else the system message must tell of them
  bool writes_calls = false;    // else the assistant's text must hold them
  bool writes_results = false;  // else results are the user's words
  bool takes_system = false;    // else what the system message would say stands before the user's first words
  Arguments arguments = Arguments::object;
  ResponseTemplate response;
  std::string declared_problem =
      {};  // why the response_template that the model brings is not used; empty: it is, or there is none
};

// How conversations become prompts and answers become events, for one model. Immutable; any
// thread may use it.
class ChatFormat {
 public:
  explicit ChatFormat(const ChatTemplate& chat_template);

  const TemplateTraits& traits() const { return traits_; }

  // A conversation in OpenAI's shape as its template wants to have it: arguments as objects or as text, no tools where the
  // template knows none.
  ChatInput adapted(ChatInput input) const;

  // Where the answer to such a prompt begins.
  ResponseStart start_after(const MarkedText& prompt) const;

 private:
  TemplateTraits traits_;
};

// The traits of a template. Never fails: what cannot be found is as if the template did not do it.
TemplateTraits find_traits(const ChatTemplate& chat_template);

// Tells a model of tools that its template does not mention.
std::string generic_tool_prompt(const OrderedJson& tools);
// Calls and results as the generic prompt describes them.
std::string generic_call_text(const OrderedJson& calls);

}  // namespace quire
