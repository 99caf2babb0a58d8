#include "openai/chat_request.h"

#include <algorithm>

#include "openai/api_error.h"
#include "openai/request_limits.h"
#include "openai/tool_list.h"

namespace quire {
namespace {

std::string message_text(const OrderedJson& content, const std::string& field) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) bad_field(field, "'{}' must be a text or a list of text parts", field);
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    const OrderedJson& part = content[i];
    const std::string place = fmt::format("{}[{}]", field, i);
    if (!part.is_object()) bad_field(place, "'{}' must be an object", place);
    const JsonFields fields(part, place + ".");
    const std::string type = fields.text("type").value_or("text");
    if (type != "text" && type != "refusal") not_built(place, "message parts of type other than text");
    const auto words = fields.text(type.c_str());
    if (!words) bad_field(place, "'{}' has no text", place);
    if (i > 0) text += '\n';
    text += *words;
  }
  return text;
}

ToolCall read_call(const OrderedJson& call, const std::string& place) {
  if (!call.is_object()) bad_field(place, "'{}' must be an object", place);
  const JsonFields fields(call, place + ".");
  if (fields.text("type").value_or("function") != "function")
    not_built(place, "calls of anything but functions");
  const auto function = fields.object("function");
  const auto name = function ? function->text("name") : std::nullopt;
  if (!name || name->empty()) bad_field(place + ".function.name", "'{}.function.name' is missing", place);
  ToolCall read{.id = fields.text("id").value_or(""), .name = *name, .arguments = "{}"};
  const OrderedJson& arguments = function->get("arguments");
  if (arguments.is_object()) {
    read.arguments = arguments.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
  } else if (const auto text = function->text("arguments"); text && !text->empty()) {
    read.arguments = *text;
  }
  return read;
}

std::vector<ToolCall> read_calls(const JsonFields& fields) {
  std::vector<ToolCall> calls;
  const OrderedJson& list = fields.get("tool_calls");
  if (list.is_null()) return calls;
  const std::string place = fields.name("tool_calls");
  if (!list.is_array()) bad_field(place, "'{}' must be a list", place);
  if (list.size() > kMostCalls)
    bad_field(place, "'{}' has {} calls; at most {} are allowed", place, list.size(), kMostCalls);
  for (size_t i = 0; i < list.size(); ++i)
    calls.push_back(read_call(list[i], fmt::format("{}[{}]", place, i)));
  return calls;
}

ChatMessage read_message(const OrderedJson& message, size_t index) {
  using Role = ChatMessage::Role;
  const std::string place = fmt::format("messages[{}]", index);
  if (!message.is_object()) bad_field(place, "'{}' must be an object", place);
  const JsonFields fields(message, place + ".");
  const std::string role = fields.text("role").value_or("");
  ChatMessage read;
  if (role == "system" || role == "developer") {  // its newer name
    read.role = Role::system;
  } else if (role == "user") {
    read.role = Role::user;
  } else if (role == "assistant") {
    read.role = Role::assistant;
  } else if (role == "tool") {
    read.role = Role::tool;
  } else if (role == "function") {
    not_built(place + ".role", "calling functions as they were called before tools");
  } else {
    bad_field(place + ".role", "'{}.role' must be system, developer, user, assistant or tool", place);
  }
  if (read.role == Role::assistant) {
    read.calls = read_calls(fields);
    for (const char* name : {"reasoning_content", "reasoning", "thinking"}) {
      if (read.reasoning.empty() && fields.get(name).is_string()) read.reasoning = *fields.text(name);
    }
  }
  if (fields.has("content")) {
    read.text = message_text(fields.get("content"), place + ".content");
  } else if (read.calls.empty() && read.reasoning.empty()) {
    bad_field(place + ".content", "'{}.content' is missing", place);
  }
  if (read.role == Role::tool) read.call_id = fields.text("tool_call_id").value_or("");
  read.name = fields.text("name").value_or("");
  return read;
}

// Results name their tool, which some templates want and clients leave out.
void name_results(std::vector<ChatMessage>& messages) {
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].role != ChatMessage::Role::tool || !messages[i].name.empty()) continue;
    for (size_t before = i; before-- > 0;) {
      if (messages[before].role != ChatMessage::Role::assistant) continue;
      for (const ToolCall& call : messages[before].calls) {
        if (call.id == messages[i].call_id) messages[i].name = call.name;
      }
      break;
    }
  }
}

std::vector<ToolSpec> read_tools(const JsonFields& fields) {
  return read_tool_list(fields, [](const JsonFields& tool, const std::string& place) {
    if (tool.text("type").value_or("function") != "function")
      not_built(place + ".type", "tools other than functions");
    const OrderedJson nothing = OrderedJson::object();
    const std::string inside = place + ".function";
    return read_tool(tool.object("function").value_or(JsonFields(nothing, inside + ".")), inside,
                     "parameters");
  });
}

void read_variables(const JsonFields& fields, Conversation& conversation) {
  if (fields.object("chat_template_kwargs")) conversation.variables = fields.get("chat_template_kwargs");
  const auto effort = fields.text("reasoning_effort");
  if (!effort) return;
  for (const char* known : {"none", "minimal", "low", "medium", "high", "xhigh", "max"}) {
    if (*effort == known) return set_reasoning_effort(conversation, *effort);
  }
  bad_field("reasoning_effort",
            "'reasoning_effort' is '{}', but must be none, minimal, low, medium, high or xhigh", *effort);
}

std::vector<std::string> names_of(const Conversation& conversation) {
  std::vector<std::string> names;
  for (const ToolSpec& tool : conversation.tools) names.push_back(tool.name);
  return names;
}

// One named tool, or those of a list.
ConstraintWish choice_of(const JsonFields& choice, const Conversation& conversation) {
  ConstraintWish wish{.kind = ConstraintWish::Kind::tool_call, .field = "tool_choice"};
  const auto function = choice.object("function");
  const auto name = function ? function->text("name") : choice.text("name");
  if (!name) {
    not_built("tool_choice", "choices other than none, auto, required and a function's name");
  }
  const std::vector<std::string> names = names_of(conversation);
  if (std::ranges::find(names, *name) == names.end())
    bad_field("tool_choice", "'tool_choice' names '{}', which is none of the tools", *name);
  wish.tools = {*name};
  return wish;
}

}  // namespace

Conversation read_conversation(const JsonFields& fields) {
  const OrderedJson& messages = fields.get("messages");
  if (!messages.is_array() || messages.empty())
    bad_field("messages", "'messages' must be a list with at least one message");
  if (messages.size() > kMostMessages)
    bad_field("messages", "'messages' has {} messages; at most {} are allowed", messages.size(),
              kMostMessages);
  Conversation conversation;
  for (size_t i = 0; i < messages.size(); ++i) conversation.messages.push_back(read_message(messages[i], i));
  name_results(conversation.messages);
  conversation.tools = read_tools(fields);
  conversation.add_generation_prompt = fields.boolean("add_generation_prompt").value_or(true);
  read_variables(fields, conversation);
  return conversation;
}

CallPolicy read_call_policy(const JsonFields& fields, const Conversation& conversation) {
  if (conversation.tools.empty()) return CallPolicy::none;
  return fields.get("tool_choice") == "none" ? CallPolicy::none : CallPolicy::any;
}

ConstraintWish read_constraint(const JsonFields& fields, const Conversation& conversation) {
  using Kind = ConstraintWish::Kind;
  const OrderedJson& choice = fields.get("tool_choice");
  if (choice.is_string() && choice == "required") {
    if (conversation.tools.empty())
      bad_field("tool_choice", "'tool_choice' is required, but there are no tools");
    return {.kind = Kind::tool_call, .field = "tool_choice", .tools = names_of(conversation)};
  }
  if (choice.is_object()) return choice_of(*fields.object("tool_choice"), conversation);
  if (!choice.is_null() && choice != "none" && choice != "auto")
    bad_field("tool_choice", "'tool_choice' must be none, auto, required or name a function");
  return {};
}

}  // namespace quire
