#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace quire {

using Json = nlohmann::json;

// Keeps the order of an object's members, as templates that print them expect.
using OrderedJson = nlohmann::ordered_json;

struct JsonLimits {
  size_t depth = 128;                       // levels of arrays and objects
  uint64_t tree_bytes = uint64_t(4) << 30;  // that the parsed tree may take, roughly
};

// Parses text from outside in time and memory that grow with its length alone: invalid JSON, broken UTF-8 or what is
// beyond the limits throws Error, naming `what`; where order is kept, so do objects of more than 10,000 members, or very
// many large ones.
Json parse_json(std::string_view text, const std::string& what, const JsonLimits& limits = {});
OrderedJson parse_ordered_json(std::string_view text, const std::string& what, const JsonLimits& limits = {});

// A whole file as JSON; throws Error if it cannot be read or is larger than `max_bytes`.
Json read_json_file(const std::string& path, size_t max_bytes = size_t(256) << 20);

}  // namespace quire
