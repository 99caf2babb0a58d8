#pragma once

#include <functional>
#include <string>

#include "base/json.h"
#include "wire/responses_tools.h"

namespace quire {

// What an ask of the Responses API brings along for its answer. Belongs to the request's reader, then to its writer.
struct ResponsesTurn {
  OrderedJson fields;    // of the request, which every form of the response repeats
  OrderedJson items;     // all that was said so far: earlier turns, then this one's input
  ResponsesTools tools;  // that are no plain functions
  bool store = true;
  // Keeps the response and all that was said, both as JSON, under its id. Null: nobody does. May be called on any thread.
  std::function<void(const std::string& id, std::string response, std::string items)> keep = {};
};

}  // namespace quire
