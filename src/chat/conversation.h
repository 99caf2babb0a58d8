#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "chat/output_event.h"
#include "text/chat_template.h"

namespace quire {

// One message, whatever API it came by.
struct ChatMessage {
  enum class Role : uint8_t { system, user, assistant, tool };
  Role role = Role::user;
  std::string text = {};
  std::string reasoning = {};        // assistant: what it thought before
  std::vector<ToolCall> calls = {};  // assistant: arguments as they came, a JSON object as a rule
  std::string call_id = {};          // tool: whose result it is
  std::string name = {};             // of who speaks, or of the tool; may be empty
};

// A function that the model may ask for.
struct ToolSpec {
  std::string name;
  std::string description;
  OrderedJson parameters;  // a JSON schema, or null
  bool strict = false;     // its arguments must follow the schema
};

// A conversation as all APIs have it in common.
struct Conversation {
  std::vector<ChatMessage> messages;
  std::vector<ToolSpec> tools;
  OrderedJson variables = OrderedJson::object();  // of the template: enable_thinking, ...
  bool add_generation_prompt = true;
};

// In the shape that templates read.
ChatInput to_chat_input(const Conversation& conversation);
OrderedJson tools_json(const std::vector<ToolSpec>& tools);

// Says how much a model shall think, in the words of the templates that know any: "none" to "xhigh". What the conversation's
// variables say already stays.
void set_reasoning_effort(Conversation& conversation, const std::string& effort);

}  // namespace quire
