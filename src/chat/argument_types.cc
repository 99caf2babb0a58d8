#include "chat/argument_types.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "chat/loose_value.h"

namespace quire {
namespace {

constexpr uint32_t kMostDepth = 16;

void add_types(const OrderedJson& schema, std::vector<std::string>& types, uint32_t depth = 0) {
  if (!schema.is_object() || depth > kMostDepth) return;
  const auto add = [&](const OrderedJson& type) {
    if (type.is_string()) types.push_back(type.get<std::string>());
  };
  if (const auto type = schema.find("type"); type != schema.end()) {
    add(*type);
    if (type->is_array()) {
      for (const OrderedJson& one : *type) add(one);
    }
  }
  for (const char* choice : {"anyOf", "oneOf"}) {
    const auto found = schema.find(choice);
    if (found == schema.end() || !found->is_array()) continue;
    for (const OrderedJson& one : *found) add_types(one, types, depth + 1);
  }
  if (schema.value("nullable", OrderedJson()) == true) types.push_back("null");
}

std::string without_space(const std::string& text) {
  const auto space = [](char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; };
  const auto begin = std::ranges::find_if_not(text, space);
  const auto end = std::find_if_not(text.rbegin(), std::make_reverse_iterator(begin), space).base();
  return {begin, end};
}

bool is_whole(const std::string& text) {
  const size_t begin = text.starts_with('-') ? 1 : 0;
  return text.size() > begin &&
         std::ranges::all_of(text.substr(begin), [](char c) { return c >= '0' && c <= '9'; });
}

std::optional<OrderedJson> number_of(const std::string& text) {
  int64_t whole = 0;
  const char* end = text.data() + text.size();
  if (const auto [at, problem] = std::from_chars(text.data(), end, whole);
      problem == std::errc() && at == end)
    return whole;
  double real = 0;
  const auto [at, problem] = std::from_chars(text.data(), end, real);
  if (problem != std::errc() || at != end || !std::isfinite(real)) return std::nullopt;
  return real;
}

std::optional<OrderedJson> json_of(const std::string& text) {
  try {
    return parse_ordered_json(text, "an argument");
  } catch (const Error&) {
    return python_value(text);
  }
}

// Ways to write it that are another type's as well.
std::optional<bool> as_boolean(std::string text) {
  for (char& c : text) c = char(std::tolower(static_cast<unsigned char>(c)));
  if (text == "true" || text == "1") return true;
  if (text == "false" || text == "0") return false;
  return std::nullopt;
}

std::optional<OrderedJson> as_type(const std::string& type, const std::string& text) {
  if (type == "integer" || type == "number") {
    const auto number = number_of(text);
    if (!number || type == "number" || number->is_number_integer()) return number;
    const double real = number->get<double>();
    if (is_whole(text)) return number;  // of more digits than an integer here has
    if (real != std::floor(real) || std::abs(real) > 9e15) return std::nullopt;
    return int64_t(real);
  }
  if (type == "boolean") {
    if (text == "true" || text == "True") return true;
    if (text == "false" || text == "False") return false;
  }
  if (type == "null" && (text == "null" || text == "None")) return OrderedJson();
  if (type == "object" || type == "array") {
    if (text.empty() || (text[0] != '{' && text[0] != '[')) return std::nullopt;
    auto json = json_of(text);
    if (json && (type == "object" ? json->is_object() : json->is_array())) return json;
  }
  return std::nullopt;
}

}  // namespace

ArgumentTypes::ArgumentTypes(const OrderedJson& tools) {
  if (!tools.is_array()) return;
  for (const OrderedJson& tool : tools) {
    if (!tool.is_object()) continue;
    const auto inner = tool.find("function");
    const OrderedJson& function = inner != tool.end() && inner->is_object() ? *inner : tool;
    const auto name = function.find("name");
    if (name == function.end() || !name->is_string()) continue;
    auto& keys = tools_[name->get<std::string>()];
    const auto parameters = function.find("parameters");
    if (parameters == function.end() || !parameters->is_object()) continue;
    const auto properties = parameters->find("properties");
    if (properties == parameters->end() || !properties->is_object()) continue;
    for (const auto& [key, schema] : properties->items()) add_types(schema, keys[key]);
  }
}

OrderedJson ArgumentTypes::value(const std::string& tool, const std::string& key,
                                 const std::string& text) const {
  const std::string bare = without_space(text);
  const auto found = tools_.find(tool);
  if (found != tools_.end()) {
    const auto types = found->second.find(key);
    if (types != found->second.end() && !types->second.empty()) {
      for (const std::string& type : types->second) {
        if (auto value = as_type(type, bare)) return std::move(*value);
      }
      if (std::ranges::find(types->second, "boolean") != types->second.end()) {
        if (const auto said = as_boolean(bare)) return *said;
      }
      return text;
    }
  }
  for (const char* type : {"number", "boolean", "null", "object", "array"}) {
    if (auto value = as_type(type, bare)) return std::move(*value);
  }
  return text;
}

void ArgumentTypes::fit(const std::string& tool, OrderedJson& arguments) const {
  const auto found = tools_.find(tool);
  if (found == tools_.end() || !arguments.is_object()) return;
  for (auto& [key, value] : arguments.items()) {
    const auto types = found->second.find(key);
    if (!value.is_string() || types == found->second.end() || types->second.empty()) continue;
    if (std::ranges::find(types->second, "string") == types->second.end())
      value = this->value(tool, key, value.get<std::string>());
  }
}

void ArgumentTypes::cast(const std::string& tool, OrderedJson& arguments) const {
  for (auto& [key, value] : arguments.items()) {
    const std::vector<std::string> types = types_of(tool, key);
    if (types.empty()) continue;
    if (value.is_string()) {
      value = this->value(tool, key, value.get<std::string>());
    } else if (value.is_array() && std::ranges::find(types, "array") == types.end()) {
      for (OrderedJson& one : value) {
        if (one.is_string()) one = this->value(tool, key, one.get<std::string>());
      }
    }
  }
}

std::map<std::string, std::vector<std::string>> ArgumentTypes::all_of(const std::string& tool) const {
  const auto found = tools_.find(tool);
  return found == tools_.end() ? std::map<std::string, std::vector<std::string>>() : found->second;
}

std::vector<std::string> ArgumentTypes::types_of(const std::string& tool, const std::string& key) const {
  const auto found = tools_.find(tool);
  if (found == tools_.end()) return {};
  const auto types = found->second.find(key);
  return types == found->second.end() ? std::vector<std::string>() : types->second;
}

}  // namespace quire
