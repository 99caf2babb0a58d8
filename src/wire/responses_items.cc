#include "wire/responses_items.h"

#include "openai/api_error.h"
#include "openai/json_fields.h"
#include "openai/request_limits.h"
#include "wire/responses_tools.h"

namespace quire {
namespace {

using ItemRole = ChatMessage::Role;

constexpr size_t kMostItemParts = 4096;  // of one item

// A text, or parts that are all text.
std::string item_text(const OrderedJson& content, const std::string& place) {
  if (content.is_null()) return "";
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) bad_field(place, "'{}' must be a text or a list of parts", place);
  if (content.size() > kMostItemParts)
    bad_field(place, "'{}' has {} parts; at most {} are allowed", place, content.size(), kMostItemParts);
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    const std::string where = fmt::format("{}[{}]", place, i);
    if (!content[i].is_object()) bad_field(where, "'{}' must be an object", where);
    const JsonFields fields(content[i], where + ".");
    const std::string type = fields.text("type").value_or("");
    if (type == "input_image") not_built(where, "images");
    if (type == "input_file") not_built(where, "files");
    if (type == "input_audio") not_built(where, "audio");
    const bool is_text = type == "input_text" || type == "output_text" || type == "text" ||
                         type == "summary_text" || type == "reasoning_text";
    if (!is_text && type != "refusal") not_built(where, "parts of this type; only text is read");
    const auto words = fields.text(is_text ? "text" : "refusal");
    if (!words) bad_field(where, "'{}' has no text", where);
    if (i > 0) text += '\n';
    text += *words;
  }
  return text;
}

bool is_system_alone(const Conversation& conversation) {
  return conversation.messages.size() == 1 && conversation.messages[0].role == ItemRole::system;
}

// The assistant's message that goes on, or a new one.
ChatMessage& assistant_message(Conversation& conversation) {
  std::vector<ChatMessage>& messages = conversation.messages;
  if (messages.empty() || messages.back().role != ItemRole::assistant)
    messages.push_back({.role = ItemRole::assistant});
  return messages.back();
}

void add_message_item(const JsonFields& fields, const std::string& place, Conversation& conversation) {
  const std::string role = fields.text("role").value_or("");
  if (!fields.has("content")) bad_field(place + ".content", "'{}.content' is missing", place);
  const std::string text = item_text(fields.get("content"), place + ".content");
  if (role == "user") {
    conversation.messages.push_back({.role = ItemRole::user, .text = text});
  } else if (role == "assistant") {
    ChatMessage& last = assistant_message(conversation);
    if (last.text.empty() && last.calls.empty()) {
      last.text = text;
    } else {
      conversation.messages.push_back({.role = ItemRole::assistant, .text = text});
    }
  } else if (role == "system" || role == "developer") {
    // Most templates know one system message, at the beginning.
    if (is_system_alone(conversation)) {
      conversation.messages[0].text += "\n\n" + text;
    } else {
      conversation.messages.push_back({.role = ItemRole::system, .text = text});
    }
  } else {
    bad_field(place + ".role", "'{}.role' must be user, assistant, system or developer", place);
  }
}

void add_call_item(const JsonFields& fields, const std::string& place, Conversation& conversation) {
  ToolCall call{.id = fields.text("call_id").value_or(""),
                .name = fields.text("name").value_or(""),
                .arguments = fields.text("type") == "custom_tool_call"
                                 ? custom_arguments(fields.text("input").value_or(""))
                                 : fields.text("arguments").value_or("")};
  if (call.id.empty()) bad_field(place + ".call_id", "'{}.call_id' is missing", place);
  if (call.name.empty()) bad_field(place + ".name", "'{}.name' is missing", place);
  if (const auto space = fields.text("namespace"); space && !space->empty())
    call.name = name_in_space(*space, call.name);
  if (call.arguments.empty()) call.arguments = "{}";
  ChatMessage& message = assistant_message(conversation);
  if (message.calls.size() >= kMostCalls)
    bad_field(place, "'{}' is one call too many: at most {} may stand side by side", place, kMostCalls);
  message.calls.push_back(std::move(call));
}

void add_result_item(const JsonFields& fields, const std::string& place, Conversation& conversation) {
  ChatMessage result{.role = ItemRole::tool, .text = item_text(fields.get("output"), place + ".output")};
  result.call_id = fields.text("call_id").value_or("");
  if (result.call_id.empty()) bad_field(place + ".call_id", "'{}.call_id' is missing", place);
  // The calls are in the last message that is not a result.
  for (size_t i = conversation.messages.size(); i-- > 0 && result.name.empty();) {
    for (const ToolCall& call : conversation.messages[i].calls) {
      if (call.id == result.call_id) result.name = call.name;
    }
    if (conversation.messages[i].role != ItemRole::tool) break;
  }
  conversation.messages.push_back(std::move(result));
}

// Its words, or else their summary; what is encrypted nobody can read.
void add_reasoning_item(const JsonFields& fields, const std::string& place, Conversation& conversation) {
  std::string text = item_text(fields.get("content"), place + ".content");
  if (text.empty()) text = item_text(fields.get("summary"), place + ".summary");
  if (text.empty()) return;
  ChatMessage& last = assistant_message(conversation);
  if (!last.text.empty() || !last.calls.empty()) {
    conversation.messages.push_back({.role = ItemRole::assistant, .reasoning = text});
  } else {
    if (!last.reasoning.empty()) last.reasoning += '\n';
    last.reasoning += text;
  }
}

void add_item(const OrderedJson& item, const std::string& place, Conversation& conversation) {
  if (!item.is_object()) bad_field(place, "'{}' must be an object", place);
  const JsonFields fields(item, place + ".");
  const std::string type = fields.text("type").value_or(fields.has("role") ? "message" : "");
  if (type == "message") return add_message_item(fields, place, conversation);
  if (type == "function_call" || type == "custom_tool_call")
    return add_call_item(fields, place, conversation);
  if (type == "function_call_output" || type == "custom_tool_call_output")
    return add_result_item(fields, place, conversation);
  if (type == "reasoning") return add_reasoning_item(fields, place, conversation);
  if (type.empty()) bad_field(place + ".type", "'{}.type' is missing", place);
  throw ApiError(400, place, "unsupported_parameter",
                 fmt::format("'{}' is not supported yet: items of the type '{}'", place, type));
}

}  // namespace

void add_response_items(const OrderedJson& items, const std::string& place, Conversation& conversation) {
  for (size_t i = 0; i < items.size(); ++i) add_item(items[i], fmt::format("{}[{}]", place, i), conversation);
}

OrderedJson response_input_items(const OrderedJson& input) {
  if (input.is_null()) bad_field("input", "'input' is missing");
  if (input.is_array()) {
    if (input.empty()) bad_field("input", "'input' must have at least one item");
    return input;
  }
  if (!input.is_string()) bad_field("input", "'input' must be a text or a list of items");
  OrderedJson part = {{"type", "input_text"}, {"text", input}};
  OrderedJson message = {{"type", "message"}, {"role", "user"}};
  message["content"] = OrderedJson::array({std::move(part)});
  return OrderedJson::array({std::move(message)});
}

}  // namespace quire
