#pragma once

#include <string>
#include <vector>

#include <fmt/format.h>

#include "chat/conversation.h"
#include "openai/api_error.h"
#include "openai/json_fields.h"
#include "openai/request_limits.h"

namespace quire {

// The tools of a request, each by `read`, which is given its fields and where it stands ("tools[2]"). Throws ApiError that names
// the field.
template <class Read>
std::vector<ToolSpec> read_tool_list(const JsonFields& fields, const Read& read) {
  std::vector<ToolSpec> tools;
  const OrderedJson& list = fields.get("tools");
  if (list.is_null()) return tools;
  if (!list.is_array()) bad_field("tools", "'tools' must be a list");
  if (list.size() > kMostTools)
    bad_field("tools", "'tools' has {} tools; at most {} are allowed", list.size(), kMostTools);
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string place = fmt::format("tools[{}]", i);
    if (!list[i].is_object()) bad_field(place, "'{}' must be an object", place);
    tools.push_back(read(JsonFields(list[i], place + "."), place));
  }
  return tools;
}

// What every API says of a function alike; its parameters stand under the name `schema`. `place`: where that is said.
ToolSpec read_tool(const JsonFields& function, const std::string& place, const char* schema);

}  // namespace quire
