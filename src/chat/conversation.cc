#include "chat/conversation.h"

#include <utility>

#include "base/error.h"

namespace quire {
namespace {

const char* role_name(ChatMessage::Role role) {
  switch (role) {
    case ChatMessage::Role::system:
      return "system";
    case ChatMessage::Role::user:
      return "user";
    case ChatMessage::Role::assistant:
      return "assistant";
    case ChatMessage::Role::tool:
      return "tool";
  }
  return "user";
}

OrderedJson call_json(const ToolCall& call) {
  OrderedJson function = {{"name", call.name}, {"arguments", call.arguments}};
  OrderedJson json = {{"id", call.id}, {"type", "function"}};
  json["function"] = std::move(function);
  return json;
}

}  // namespace

OrderedJson tools_json(const std::vector<ToolSpec>& tools) {
  if (tools.empty()) return {};
  OrderedJson list = OrderedJson::array();
  for (const ToolSpec& tool : tools) {
    OrderedJson function = {{"name", tool.name}, {"description", tool.description}};
    // Templates read the properties of every tool.
    function["parameters"] = tool.parameters.is_object()
                                 ? tool.parameters
                                 : OrderedJson{{"type", "object"}, {"properties", OrderedJson::object()}};
    OrderedJson json = {{"type", "function"}};
    json["function"] = std::move(function);
    list.push_back(std::move(json));
  }
  return list;
}

ChatInput to_chat_input(const Conversation& conversation) {
  ChatInput input;
  input.messages = OrderedJson::array();
  for (const ChatMessage& message : conversation.messages) {
    OrderedJson json = {{"role", role_name(message.role)}, {"content", message.text}};
    if (!message.name.empty()) json["name"] = message.name;
    if (!message.call_id.empty()) json["tool_call_id"] = message.call_id;
    if (!message.reasoning.empty()) json["reasoning_content"] = json["reasoning"] = message.reasoning;
    if (!message.calls.empty()) {
      json["tool_calls"] = OrderedJson::array();
      for (const ToolCall& call : message.calls) json["tool_calls"].push_back(call_json(call));
    }
    input.messages.push_back(std::move(json));
  }
  input.tools = tools_json(conversation.tools);
  input.extra = conversation.variables;
  input.add_generation_prompt = conversation.add_generation_prompt;
  return input;
}

void set_reasoning_effort(Conversation& conversation, const std::string& effort) {
  OrderedJson& variables = conversation.variables;
  const auto set = [&](const char* name, OrderedJson value) {
    if (!variables.contains(name)) variables[name] = std::move(value);
  };
  const bool thinks = effort != "none";
  set("enable_thinking", thinks);
  set("thinking", thinks);
  // No template knows more than these three.
  if (!thinks || effort == "minimal") {
    set("reasoning_effort", "low");
  } else {
    set("reasoning_effort", effort == "xhigh" || effort == "max" ? "high" : effort);
  }
}

}  // namespace quire
