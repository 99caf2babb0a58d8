#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "chat/conversation.h"

namespace quire {

// What a request demands of the form of its answer, whatever API it came by: the one place that a grammar is made from.
struct ConstraintWish {
  enum class Kind : uint8_t {
    none,
    any_json,     // a JSON object
    json_schema,  // what `schema` allows
    tool_call,    // a call of one of `tools`, and nothing else
    regex,        // the next three: `text`
    grammar,
    choice,  // one of `choices`
  };
  Kind kind = Kind::none;
  std::string field = {};  // of the request, that says so
  OrderedJson schema = {};
  std::vector<std::string> tools = {};
  std::string text = {};
  std::vector<std::string> choices = {};

  bool operator==(const ConstraintWish&) const = default;
};

}  // namespace quire
