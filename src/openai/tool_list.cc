#include "openai/tool_list.h"

namespace quire {

ToolSpec read_tool(const JsonFields& function, const std::string& place, const char* schema) {
  const auto name = function.text("name");
  if (!name || name->empty() || name->size() > kMostNameBytes)
    bad_field(place + ".name", "'{}.name' must be a name of 1 to {} bytes", place, kMostNameBytes);
  ToolSpec spec{.name = *name, .description = function.text("description").value_or(""), .parameters = {}};
  if (function.object(schema)) spec.parameters = function.get(schema);
  spec.strict = function.boolean("strict").value_or(false);
  return spec;
}

}  // namespace quire
