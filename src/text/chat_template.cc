#include "text/chat_template.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <optional>

#include "base/check.h"
#include "base/error.h"
#include "text/jinja/jinja.h"

namespace quire {
namespace {

using jinja::Origin;
using jinja::Value;

Value text_value(const std::string& text, Origin origin) {
  return jinja::make_string(nullptr, text, origin);
}

Value from_json(const OrderedJson& json, Origin origin, uint32_t depth = 0) {
  if (depth >= jinja::kMaxValueDepth / 2) throw Error("the conversation nests deeper than {} levels", depth);
  switch (json.type()) {
    case OrderedJson::value_t::null:
      return jinja::None{};
    case OrderedJson::value_t::boolean:
      return json.get<bool>();
    case OrderedJson::value_t::number_integer:
      return json.get<int64_t>();
    case OrderedJson::value_t::number_unsigned: {
      const auto number = json.get<uint64_t>();
      if (number > uint64_t(std::numeric_limits<int64_t>::max())) return double(number);
      return int64_t(number);
    }
    case OrderedJson::value_t::number_float:
      return json.get<double>();
    case OrderedJson::value_t::string:
      return text_value(json.get_ref<const std::string&>(), origin);
    case OrderedJson::value_t::array: {
      std::vector<Value> items;
      for (const auto& item : json) items.push_back(from_json(item, origin, depth + 1));
      return jinja::make_sequence(nullptr, std::move(items));
    }
    case OrderedJson::value_t::object: {
      std::vector<std::pair<Value, Value>> entries;
      for (const auto& [key, value] : json.items()) {
        entries.emplace_back(text_value(key, origin), from_json(value, origin, depth + 1));
      }
      return jinja::make_dict(nullptr, std::move(entries));
    }
    default:
      throw Error("the conversation holds a value that is not JSON");
  }
}

// Templates write '<|' + role + '|>' and mean a special token: these words cannot forge anything else.
bool is_known_role(const std::string& role) {
  static constexpr std::array<std::string_view, 8> kRoles = {"system",    "user",     "assistant", "tool",
                                                             "developer", "function", "ipython",   "model"};
  return std::find(kRoles.begin(), kRoles.end(), role) != kRoles.end();
}

// A message's reasoning goes by several names; templates find it by any of them, as in Transformers.
OrderedJson with_reasoning_names(const OrderedJson& message) {
  for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
    const auto found = message.find(name);
    if (found == message.end() || found->is_null()) continue;
    OrderedJson result = OrderedJson::object();
    result["thinking"] = *found;
    for (const auto& [key, value] : message.items()) result[key] = value;
    result["reasoning_content"] = *found;
    return result;
  }
  return message;
}

Value message_value(const OrderedJson& source) {
  if (!source.is_object()) throw Error("each message must be an object with a role and content");
  const OrderedJson message = with_reasoning_names(source);
  std::vector<std::pair<Value, Value>> entries;
  for (const auto& [key, value] : message.items()) {
    const bool trusted =
        key == "role" && value.is_string() && is_known_role(value.get_ref<const std::string&>());
    entries.emplace_back(text_value(key, Origin::plain),
                         from_json(value, trusted ? Origin::trusted : Origin::plain, 2));
  }
  return jinja::make_dict(nullptr, std::move(entries));
}

}  // namespace

struct ChatTemplate::State {
  std::optional<jinja::Template> usual, tool_use;
  jinja::Variables specials;
  std::string source, response;

  const jinja::Template& program_for(const ChatInput& input) const {
    if (tool_use && !input.tools.is_null()) return *tool_use;
    if (!usual) throw Error("the model has a chat template for conversations with tools only");
    return *usual;
  }
};

ChatTemplate::ChatTemplate(const std::string& source, ChatTemplateSpecials specials)
    : ChatTemplate(ChatTemplateSources{.usual = source, .tool_use = {}}, std::move(specials)) {}

ChatTemplate::ChatTemplate(const ChatTemplateSources& sources, ChatTemplateSpecials specials) {
  CHECK(!sources.empty());
  const auto program = [](const std::string& source) {
    return source.empty() ? std::nullopt : std::optional<jinja::Template>(std::in_place, source);
  };
  jinja::Variables variables;
  for (const auto& [name, token] : specials.others.items()) {
    variables.emplace_back(name, from_json(token, Origin::trusted));
  }
  if (!specials.bos_token.empty())
    variables.emplace_back("bos_token", text_value(specials.bos_token, Origin::trusted));
  if (!specials.eos_token.empty())
    variables.emplace_back("eos_token", text_value(specials.eos_token, Origin::trusted));
  state_ = std::make_unique<const State>(State{program(sources.usual), program(sources.tool_use),
                                               std::move(variables), sources.usual + sources.tool_use,
                                               sources.response});
}

const std::string& ChatTemplate::source() const {
  return state_->source;
}

const std::string& ChatTemplate::response_source() const {
  return state_->response;
}

ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

MarkedText ChatTemplate::render(const ChatInput& input) const {
  if (!input.messages.is_array()) throw Error("the messages must be a list");
  std::vector<Value> messages;
  for (const auto& message : input.messages) messages.push_back(message_value(message));
  // Later ones win: what a conversation calls bos_token is not trusted as one.
  jinja::Variables variables = state_->specials;
  variables.emplace_back("documents", jinja::None{});
  for (const auto& [name, value] : input.extra.items())
    variables.emplace_back(name, from_json(value, Origin::plain));
  variables.emplace_back("messages", jinja::make_sequence(nullptr, std::move(messages)));
  variables.emplace_back("tools", from_json(input.tools, Origin::plain));
  variables.emplace_back("add_generation_prompt", input.add_generation_prompt);
  return state_->program_for(input).render(variables);
}

}  // namespace quire
