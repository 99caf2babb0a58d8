#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "chat/conversation.h"
#include "openai/json_fields.h"

namespace quire {

// How a client of the Responses API knows a tool that is no plain function.
struct ResponsesTool {
  std::string name, space;  // the namespace that it is in; empty: in none
  bool custom = false;      // it is given a text and not arguments
};
// By the names that the model knows; plain functions are not among them.
using ResponsesTools = std::map<std::string, ResponsesTool, std::less<>>;

// What the model calls a tool of a namespace: it knows one name.
std::string name_in_space(std::string_view space, std::string_view name);

// Reads `tools`: functions, custom tools that are given any text, and namespaces of both. To the model all of them are functions.
// Throws ApiError that names what is wrong or of another type.
ResponsesTools read_responses_tools(const JsonFields& fields, std::vector<ToolSpec>& tools);

// A custom tool's text as arguments, and back; what is no such arguments is a text as it is.
std::string custom_arguments(const std::string& input);
std::string custom_input(const std::string& arguments);

}  // namespace quire
