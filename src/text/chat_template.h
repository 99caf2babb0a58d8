#pragma once

#include <memory>
#include <string>

#include "base/json.h"
#include "text/marked_text.h"

namespace quire {

// One conversation, as the OpenAI API shapes it.
struct ChatInput {
  OrderedJson messages;  // [{role, content, tool_calls?, ...}]
  OrderedJson tools;     // null, or a list
  bool add_generation_prompt = true;
  OrderedJson extra =
      OrderedJson::object();  // further variables a template may read (enable_thinking, documents, ...)
};

struct ChatTemplateSpecials {
  std::string bos_token;  // empty: the template sees it as undefined, as in Transformers
  std::string eos_token;
  OrderedJson others = OrderedJson::object();  // further special tokens by name (pad_token, unk_token, ...)
};

// The Jinja templates a model ships. Files that hold a list of them call these two "default" and "tool_use".
struct ChatTemplateSources {
  std::string usual;     // empty: only conversations with tools can be rendered
  std::string tool_use;  // empty: `usual` renders those too
  // How answers are read, as Transformers' response_template says it, as JSON; empty: the model does not say.
  std::string response = {};

  bool empty() const { return usual.empty() && tool_use.empty(); }
};

// The templates of a model, ready to run. Immutable; any thread may use it.
class ChatTemplate {
 public:
  ChatTemplate(const std::string& source, ChatTemplateSpecials specials);
  // REQUIRES: not all are empty.
  ChatTemplate(const ChatTemplateSources& sources, ChatTemplateSpecials specials);
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  // Renders as Transformers' apply_chat_template does, which takes the template for tools if tools are given, even if
  // their list is empty. What came from `input` is marked plain, but for the
  // role of a message if it is a well-known word: templates build special tokens around it. Throws Error
  // with the template's own message if it raises one, or if it exceeds its bounds of time, depth, output.
  MarkedText render(const ChatInput& input) const;
  // All of them, one behind the other: to look for words.
  const std::string& source() const;
  // What ChatTemplateSources::response was.
  const std::string& response_source() const;

 private:
  struct State;
  std::unique_ptr<const State> state_;
};

}  // namespace quire
