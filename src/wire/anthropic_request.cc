#include "wire/anthropic_request.h"

#include <algorithm>

#include "openai/answer_form.h"
#include "openai/api_error.h"
#include "openai/chat_request.h"
#include "openai/request_limits.h"
#include "openai/tool_list.h"

namespace quire {
namespace {

constexpr size_t kMostBlocks = 4096;  // of a message

std::string dumped(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

// Claude Code puts a number into its system prompt that is another in every request: with it no prefix would ever be found
// in the cache.
std::string without_changing_number(std::string text) {
  constexpr std::string_view kMark = "cch=";
  constexpr size_t kMostDigits = 16;
  for (size_t at = 0; (at = text.find(kMark, at)) != std::string::npos; at += kMark.size()) {
    const size_t begin = at + kMark.size(), end = text.find(';', begin);
    if (end == std::string::npos || end - begin > kMostDigits) continue;
    const std::string_view number = std::string_view(text).substr(begin, end - begin);
    if (number.find_first_not_of("0123456789abcdefABCDEF") != std::string_view::npos) continue;
    text.replace(begin, end - begin, "0");
  }
  return text;
}

// A text, or blocks that are all text.
std::string block_text(const OrderedJson& content, const std::string& place) {
  if (content.is_null()) return "";
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) bad_field(place, "'{}' must be a text or a list of blocks", place);
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    const std::string where = fmt::format("{}[{}]", place, i);
    if (!content[i].is_object()) bad_field(where, "'{}' must be an object", where);
    const JsonFields fields(content[i], where + ".");
    const std::string type = fields.text("type").value_or("");
    if (type != "text") not_built(where, "blocks of this type here; only text is read");
    if (i > 0) text += "\n\n";
    text += fields.text("text").value_or("");
  }
  return text;
}

void add_text(std::string& text, const std::string& more) {
  if (!text.empty() && !more.empty()) text += "\n\n";
  text += more;
}

// One message of theirs may be several of ours: results of tools are messages of their own.
void add_message(const OrderedJson& message, size_t index, Conversation& conversation) {
  using Role = ChatMessage::Role;
  const std::string place = fmt::format("messages[{}]", index);
  if (!message.is_object()) bad_field(place, "'{}' must be an object", place);
  const JsonFields fields(message, place + ".");
  const std::string role = fields.text("role").value_or("");
  if (role != "user" && role != "assistant" && role != "system")
    bad_field(place + ".role", "'{}.role' must be user or assistant", place);
  ChatMessage read;
  read.role = role == "user" ? Role::user : role == "system" ? Role::system : Role::assistant;
  const OrderedJson& content = fields.get("content");
  if (content.is_string()) {
    read.text = content.get<std::string>();
    conversation.messages.push_back(std::move(read));
    return;
  }
  const std::string list = place + ".content";
  if (!content.is_array()) bad_field(list, "'{}' must be a text or a list of blocks", list);
  if (content.size() > kMostBlocks)
    bad_field(list, "'{}' has {} blocks; at most {} are allowed", list, content.size(), kMostBlocks);
  bool results = false;
  for (size_t i = 0; i < content.size(); ++i) {
    const std::string where = fmt::format("{}[{}]", list, i);
    if (!content[i].is_object()) bad_field(where, "'{}' must be an object", where);
    const JsonFields block(content[i], where + ".");
    const std::string type = block.text("type").value_or("");
    if (type == "text") {
      add_text(read.text, block.text("text").value_or(""));
    } else if (type == "thinking" && read.role == Role::assistant) {
      add_text(read.reasoning, block.text("thinking").value_or(""));
    } else if (type == "redacted_thinking" && read.role == Role::assistant) {
      continue;  // nobody can read it
    } else if (type == "tool_use" && read.role == Role::assistant) {
      ToolCall call{
          .id = block.text("id").value_or(""), .name = block.text("name").value_or(""), .arguments = "{}"};
      if (call.name.empty()) bad_field(where + ".name", "'{}.name' is missing", where);
      if (block.object("input")) call.arguments = dumped(block.get("input"));
      read.calls.push_back(std::move(call));
    } else if (type == "tool_result" && read.role == Role::user) {
      ChatMessage result{.role = Role::tool, .text = block_text(block.get("content"), where + ".content")};
      result.call_id = block.text("tool_use_id").value_or("");
      for (const ChatMessage& before : conversation.messages) {
        for (const ToolCall& call : before.calls) {
          if (call.id == result.call_id) result.name = call.name;
        }
      }
      if (block.boolean("is_error").value_or(false)) result.text = "Error: " + result.text;
      conversation.messages.push_back(std::move(result));
      results = true;
    } else {
      not_built(where, type == "image" ? "images" : "blocks of this type");
    }
  }
  if (results && read.text.empty()) return;
  conversation.messages.push_back(std::move(read));
}

std::vector<ToolSpec> read_anthropic_tools(const JsonFields& fields) {
  return read_tool_list(fields, [](const JsonFields& tool, const std::string& place) {
    if (tool.text("type").value_or("custom") != "custom")
      not_built(place + ".type", "tools that the server would run itself");
    return read_tool(tool, place, "input_schema");
  });
}

void read_thinking(const JsonFields& fields, Conversation& conversation) {
  if (const auto thinking = fields.object("thinking")) {
    const std::string type = thinking->text("type").value_or("");
    if (type != "enabled" && type != "disabled" && type != "adaptive")
      bad_field("thinking.type", "'thinking.type' must be enabled, disabled or adaptive");
    for (const char* variable : {"enable_thinking", "thinking"})
      conversation.variables[variable] = type != "disabled";
  }
  const auto output = fields.object("output_config");
  if (!output) return;
  const auto effort = output->text("effort");
  if (!effort) return;
  if (*effort != "low" && *effort != "medium" && *effort != "high" && *effort != "xhigh" && *effort != "max")
    bad_field("output_config.effort", "'output_config.effort' must be low, medium, high, xhigh or max");
  set_reasoning_effort(conversation, *effort);
}

Conversation read_anthropic_conversation(const JsonFields& fields) {
  Conversation conversation;
  const OrderedJson& messages = fields.get("messages");
  if (!messages.is_array() || messages.empty())
    bad_field("messages", "'messages' must be a list with at least one message");
  if (messages.size() > kMostMessages)
    bad_field("messages", "'messages' has {} messages; at most {} are allowed", messages.size(),
              kMostMessages);
  if (const std::string system = without_changing_number(block_text(fields.get("system"), "system"));
      !system.empty())
    conversation.messages.push_back({.role = ChatMessage::Role::system, .text = system});
  for (size_t i = 0; i < messages.size(); ++i) add_message(messages[i], i, conversation);
  conversation.tools = read_anthropic_tools(fields);
  read_thinking(fields, conversation);
  return conversation;
}

ConstraintWish read_anthropic_constraint(const JsonFields& fields, const Conversation& conversation) {
  using Kind = ConstraintWish::Kind;
  if (const auto choice = fields.object("tool_choice")) {
    const std::string type = choice->text("type").value_or("");
    if (type == "any" || type == "tool") {
      ConstraintWish wish{.kind = Kind::tool_call, .field = "tool_choice"};
      const std::string wanted = choice->text("name").value_or("");
      for (const ToolSpec& tool : conversation.tools) {
        if (type == "any" || tool.name == wanted) wish.tools.push_back(tool.name);
      }
      if (wish.tools.empty())
        bad_field("tool_choice", "'tool_choice' names '{}', which is none of the tools", wanted);
      return wish;
    }
    if (type != "auto" && type != "none")
      bad_field("tool_choice.type", "'tool_choice.type' must be auto, any, tool or none");
  }
  const auto output = fields.object("output_config");
  const auto format = output ? output->object("format") : std::nullopt;
  if (!format) return {};
  return {.kind = Kind::json_schema, .field = "output_config.format", .schema = format->get("schema")};
}

}  // namespace

Ask parse_anthropic_messages(const OrderedJson& body, const ServedModel& model) {
  const JsonFields fields(body);
  check_model(fields, model);
  Ask ask;
  ask.api = Api::anthropic;
  set_sampling_defaults(ask, model);
  Request& request = ask.request;
  const auto most = fields.integer("max_tokens", 1, INT32_MAX);
  if (!most) bad_field("max_tokens", "'max_tokens' is missing");
  request.max_tokens = uint32_t(*most);
  if (const auto value = fields.number("temperature", 0, 2)) request.sampling.temperature = float(*value);
  if (const auto value = fields.number("top_p", 0, 1))
    request.sampling.top_p = std::max(float(*value), 1e-6f);
  if (const auto value = fields.integer("top_k", -1, INT32_MAX))
    request.sampling.top_k = uint32_t(std::max<int64_t>(*value, 0));
  request.stop = fields.texts("stop_sequences", kMostStops);
  for (const std::string& stop : request.stop) {
    if (stop.empty() || stop.size() > kMostStopBytes)
      bad_field("stop_sequences", "'stop_sequences' must have texts of 1 to {} bytes", kMostStopBytes);
  }
  ask.stream = fields.boolean("stream").value_or(false);
  if (const auto metadata = fields.object("metadata"))
    request.client = metadata->text("user_id").value_or("");
  request.client.resize(std::min(request.client.size(), kMostUserBytes));
  const Conversation conversation = read_anthropic_conversation(fields);
  bool calls = !conversation.tools.empty();
  if (const auto choice = fields.object("tool_choice")) {
    calls = calls && choice->text("type").value_or("") != "none";
    ask.one_call = choice->boolean("disable_parallel_tool_use").value_or(false);
  }
  set_conversation(ask, conversation, calls, model, "messages");
  keep_to(read_anthropic_constraint(fields, conversation), conversation, model, ask);
  return ask;
}

uint64_t count_anthropic_tokens(const OrderedJson& body, const ServedModel& model) {
  const JsonFields fields(body);
  check_model(fields, model);
  Ask ask;
  const Conversation conversation = read_anthropic_conversation(fields);
  set_conversation(ask, conversation, false, model, "messages");
  return ask.prompts[0].size();
}

}  // namespace quire
