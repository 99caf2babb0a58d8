#include "chat/chat_format.h"

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "chat/declared_form.h"
#include "text/utf8.h"

namespace quire {
namespace {

// The arguments of a call as a template wants them. What is no object stays as it is.
void set_arguments(OrderedJson& call, TemplateTraits::Arguments wanted) {
  if (!call.is_object()) return;
  const auto inner = call.find("function");
  OrderedJson& function = inner != call.end() ? *inner : call;
  if (!function.is_object()) return;
  const auto found = function.find("arguments");
  if (found == function.end()) {
    function["arguments"] = OrderedJson::object();
    return set_arguments(call, wanted);
  }
  OrderedJson& arguments = *found;
  if (wanted == TemplateTraits::Arguments::text) {
    if (!arguments.is_string())
      arguments =
          arguments.is_null() ? "{}" : arguments.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
    return;
  }
  if (arguments.is_null()) arguments = OrderedJson::object();
  if (!arguments.is_string()) return;
  const std::string text = arguments.get<std::string>();
  if (text.find_first_not_of(" \n\t\r") == std::string::npos) {
    arguments = OrderedJson::object();
    return;
  }
  try {
    OrderedJson parsed = parse_ordered_json(text, "the arguments of a call");
    if (parsed.is_object()) arguments = std::move(parsed);
  } catch (const Error&) {
  }
}

std::string text_of(const OrderedJson& content) {
  if (content.is_string()) return content.get<std::string>();
  std::string text;
  if (!content.is_array()) return text;
  for (const OrderedJson& part : content) {
    if (part.is_object() && part.contains("text") && part["text"].is_string())
      text += part["text"].get_ref<const std::string&>();
  }
  return text;
}

void add_paragraph(std::string& text, const std::string& more) {
  if (!text.empty() && !more.empty()) text += "\n\n";
  text += more;
}

}  // namespace

ChatFormat::ChatFormat(const ChatTemplate& chat_template) : traits_(find_traits(chat_template)) {}

std::string generic_tool_prompt(const OrderedJson& tools) {
  std::string prompt = "# Tools\n\nYou may call one or more of these functions to help the user:\n<tools>";
  for (const OrderedJson& tool : tools)
    prompt += "\n" + tool.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
  return prompt +
         "\n</tools>\n\nTo call a function, answer with its name and arguments as a JSON object between "
         "tags:\n"
         "<tool_call>\n{\"name\": NAME, \"arguments\": ARGUMENTS}\n</tool_call>\n"
         "What it returns comes between <tool_response> tags.";
}

std::string generic_call_text(const OrderedJson& calls) {
  std::string text;
  for (const OrderedJson& call : calls) {
    if (!call.is_object()) continue;
    const OrderedJson& function = call.contains("function") ? call["function"] : call;
    if (!function.is_object()) continue;
    const OrderedJson written = {{"name", function.value("name", OrderedJson(""))},
                                 {"arguments", function.value("arguments", OrderedJson::object())}};
    if (!text.empty()) text += "\n";
    text += "<tool_call>\n" + written.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) +
            "\n</tool_call>";
  }
  return text;
}

ChatInput ChatFormat::adapted(ChatInput input) const {
  if (!input.messages.is_array()) return input;
  for (OrderedJson& message : input.messages) {
    if (!message.is_object()) continue;
    const auto calls = message.find("tool_calls");
    if (calls == message.end()) continue;
    if (!calls->is_array() || calls->empty()) {
      message.erase("tool_calls");
      continue;
    }
    const bool in_text = !traits_.writes_calls;
    for (OrderedJson& call : *calls)
      set_arguments(call, in_text ? TemplateTraits::Arguments::object : traits_.arguments);
    if (!message.contains("content") || message["content"].is_null()) message["content"] = "";
    if (!in_text) continue;
    std::string text = text_of(message["content"]);
    add_paragraph(text, generic_call_text(message["tool_calls"]));
    message["content"] = text;
    message.erase("tool_calls");
  }
  if (!traits_.writes_results) {
    OrderedJson messages = OrderedJson::array();
    bool after_result = false;
    for (OrderedJson& message : input.messages) {
      const bool result = message.is_object() && message.value("role", OrderedJson()) == "tool";
      if (!result) {
        messages.push_back(std::move(message));
      } else {
        const std::string text =
            "<tool_response>\n" + text_of(message.value("content", OrderedJson())) + "\n</tool_response>";
        if (after_result) {
          messages.back()["content"] = messages.back()["content"].get<std::string>() + "\n" + text;
        } else {
          messages.push_back({{"role", "user"}, {"content", text}});
        }
      }
      after_result = result;
    }
    input.messages = std::move(messages);
  }
  if (traits_.lists_tools || !input.tools.is_array() || input.tools.empty()) return input;
  const std::string prompt = generic_tool_prompt(input.tools);
  input.tools = OrderedJson();
  if (!traits_.takes_system) {
    for (OrderedJson& message : input.messages) {
      if (!message.is_object() || message.value("role", OrderedJson()) != "user") continue;
      message["content"] = prompt + "\n\n" + text_of(message.value("content", OrderedJson()));
      break;
    }
    return input;
  }
  const bool has_system = !input.messages.empty() && input.messages[0].is_object() &&
                          input.messages[0].value("role", OrderedJson()) == "system";
  if (has_system) {
    std::string text = text_of(input.messages[0].value("content", OrderedJson()));
    add_paragraph(text, prompt);
    input.messages[0]["content"] = text;
  } else {
    OrderedJson system = {{"role", "system"}, {"content", prompt}};
    input.messages.insert(input.messages.begin(), std::move(system));
  }
  return input;
}

ResponseStart ChatFormat::start_after(const MarkedText& prompt) const {
  ResponseStart start;
  const std::string_view text = prompt.text;
  // The conversation's own words open nothing.
  const std::string_view tail = text.substr(prompt.plain.empty() ? 0 : prompt.plain.back().end);
  if (traits_.response.declared)
    start.begun = traits_.response.declared->begun(replace_broken_utf8(std::string(tail)));
  if (traits_.response.channels) {
    constexpr std::string_view kBegin = "<|start|>assistant";
    const size_t at = tail.rfind(kBegin);
    if (at != std::string_view::npos) start.header = tail.substr(at + kBegin.size());
    return start;
  }
  for (size_t i = 0; i < traits_.response.reasoning.size(); ++i) {
    const ReasoningForm& form = traits_.response.reasoning[i];
    const size_t open = tail.rfind(form.open), close = tail.rfind(form.close);
    if (open == std::string_view::npos || (close != std::string_view::npos && close > open)) continue;
    start.reasoning = int32_t(i);
    break;
  }
  return start;
}

}  // namespace quire
