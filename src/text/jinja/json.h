#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "text/jinja/value.h"

namespace quire::jinja {

// The options of Python's json.dumps, with its defaults but for ensure_ascii.
struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::optional<std::string> indent;  // of one level; none: all on one line
  std::string_view item_separator = ", ";
  std::string_view key_separator = ": ";
};

std::string to_json(Heap& heap, const Value& value, const JsonStyle& style);

}  // namespace quire::jinja
