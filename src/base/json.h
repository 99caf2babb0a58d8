#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace quire {

using Json = nlohmann::json;

// Keeps the order of an object's members, as templates that print them expect.
using OrderedJson = nlohmann::ordered_json;

// Parses text from outside: invalid JSON, broken UTF-8, nesting deeper than 128 or, in order, objects so large that
// they would take seconds throw Error, naming `what`.
Json parse_json(std::string_view text, const std::string& what);
OrderedJson parse_ordered_json(std::string_view text, const std::string& what);

// A whole file as JSON; throws Error if it cannot be read or is larger than `max_bytes`.
Json read_json_file(const std::string& path, size_t max_bytes = size_t(256) << 20);

}  // namespace quire
