#include "wire/responses_tools.h"

#include <set>
#include <string>

#include "base/error.h"
#include "openai/api_error.h"
#include "openai/request_limits.h"
#include "openai/tool_list.h"

namespace quire {
namespace {

constexpr const char* kInput = "input";

OrderedJson custom_parameters() {
  OrderedJson properties = OrderedJson::object();
  properties[kInput] = OrderedJson{{"type", "string"}};
  OrderedJson schema = {{"type", "object"}};
  schema["properties"] = std::move(properties);
  schema["required"] = OrderedJson::array({kInput});
  schema["additionalProperties"] = false;
  return schema;
}

void check_format(const JsonFields& tool, const std::string& place) {
  const auto format = tool.object("format");
  if (!format || format->text("type").value_or("text") == "text") return;
  not_built(place + ".format", "custom tools whose text keeps to a grammar; only those that take any text");
}

class ToolReader {
 public:
  explicit ToolReader(std::vector<ToolSpec>& tools) : tools_(tools) {}

  void read(const OrderedJson& list, const std::string& place, const std::string& space) {
    if (!list.is_array()) bad_field(place, "'{}' must be a list", place);
    for (size_t i = 0; i < list.size(); ++i) {
      const std::string where = fmt::format("{}[{}]", place, i);
      if (!list[i].is_object()) bad_field(where, "'{}' must be an object", where);
      read_one(JsonFields(list[i], where + "."), where, space);
    }
  }
  ResponsesTools take() { return std::move(known_); }

 private:
  void read_one(const JsonFields& tool, const std::string& place, const std::string& space) {
    const std::string type = tool.text("type").value_or("");
    if (type == "namespace" && space.empty()) return read_space(tool, place);
    if (type != "function" && type != "custom") {
      throw ApiError(
          400, place + ".type", "unsupported_parameter",
          fmt::format("'{}' is not supported yet: tools of the type '{}'; functions, custom tools and "
                      "namespaces of them are",
                      place, type));
    }
    ToolSpec spec = read_tool(tool, place, "parameters");
    if (type == "custom") {
      check_format(tool, place);
      spec.parameters = custom_parameters();
    }
    if (type == "custom" || !space.empty()) {
      const ResponsesTool known{.name = spec.name, .space = space, .custom = type == "custom"};
      if (!space.empty()) spec.name = name_in_space(space, spec.name);
      known_.emplace(spec.name, known);
    }
    add(std::move(spec), place);
  }

  // What is said of the whole stands with the first of its tools: the model is told of no namespaces.
  void read_space(const JsonFields& space, const std::string& place) {
    const auto name = space.text("name");
    if (!name || name->empty() || name->size() > kMostNameBytes)
      bad_field(place + ".name", "'{}.name' must be a name of 1 to {} bytes", place, kMostNameBytes);
    const size_t first = tools_.size();
    read(space.get("tools"), place + ".tools", *name);
    const std::string words = space.text("description").value_or("");
    if (first == tools_.size() || words.empty()) return;
    std::string& description = tools_[first].description;
    description = description.empty() ? words : words + "\n\n" + description;
  }

  void add(ToolSpec spec, const std::string& place) {
    if (tools_.size() >= kMostTools)
      bad_field("tools", "'tools' has more than {} tools, which are the most", kMostTools);
    if (!names_.insert(spec.name).second)
      bad_field(place + ".name", "'{}' is a second tool with the name '{}'", place, spec.name);
    tools_.push_back(std::move(spec));
  }

  std::vector<ToolSpec>& tools_;
  ResponsesTools known_;
  std::set<std::string> names_;
};

}  // namespace

std::string name_in_space(std::string_view space, std::string_view name) {
  return fmt::format("{}{}{}", space, space.ends_with("__") ? "" : "__", name);
}

ResponsesTools read_responses_tools(const JsonFields& fields, std::vector<ToolSpec>& tools) {
  ToolReader reader(tools);
  const OrderedJson& list = fields.get("tools");
  if (!list.is_null()) reader.read(list, "tools", "");
  return reader.take();
}

std::string custom_arguments(const std::string& input) {
  OrderedJson arguments = OrderedJson::object();
  arguments[kInput] = input;
  return arguments.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

std::string custom_input(const std::string& arguments) {
  try {
    const OrderedJson json = parse_ordered_json(arguments, "a call's arguments");
    if (json.is_object() && json.size() == 1 && json.contains(kInput) && json[kInput].is_string())
      return json[kInput].get<std::string>();
  } catch (const Error&) {
  }
  return arguments;
}

}  // namespace quire
