#include "chat/sentinels.h"

#include <fmt/format.h>

namespace quire {

std::string Sentinels::id(uint32_t call) {
  return fmt::format("qxidxq{:03}", call);
}

OrderedJson Sentinels::arguments() {
  OrderedJson arguments = OrderedJson::object();
  arguments[std::string(kKeyA)] = kValueA;
  arguments[std::string(kKeyB)] = 471147;
  return arguments;
}

OrderedJson Sentinels::tools() {
  OrderedJson properties = OrderedJson::object();
  properties[std::string(kKeyA)] = {{"type", "string"}, {"description", "A text."}};
  properties[std::string(kKeyB)] = {{"type", "integer"}, {"description", "A number."}};
  OrderedJson parameters = {{"type", "object"}};
  parameters["properties"] = std::move(properties);
  parameters["required"] = OrderedJson::array({kKeyA});
  OrderedJson function = {{"name", kName}, {"description", "A tool."}};
  function["parameters"] = std::move(parameters);
  OrderedJson tool = {{"type", "function"}};
  tool["function"] = std::move(function);
  return OrderedJson::array({std::move(tool)});
}

}  // namespace quire
