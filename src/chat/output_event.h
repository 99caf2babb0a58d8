#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace quire {

// What a model says, once its format is taken away: the words of all APIs.
struct OutputEvent {
  enum class Kind : uint8_t {
    text,            // of the answer
    reasoning,       // that came before it
    call_begin,      // `text` is the tool's name
    call_arguments,  // a piece of a JSON object
    call_end,
  };
  Kind kind = Kind::text;
  std::string text = {};
  uint32_t call = 0;  // which call of the answer, from 0

  bool operator==(const OutputEvent&) const = default;
};
using OutputEvents = std::vector<OutputEvent>;

// One call of a tool, as a model wrote it or a client says it did.
struct ToolCall {
  std::string id;  // empty: none is known
  std::string name;
  std::string arguments;  // a JSON object, as text

  bool operator==(const ToolCall&) const = default;
};

// All of an answer.
struct WholeOutput {
  std::string text, reasoning;
  std::vector<ToolCall> calls;

  void add(const OutputEvent& event) {
    switch (event.kind) {
      case OutputEvent::Kind::text:
        text += event.text;
        break;
      case OutputEvent::Kind::reasoning:
        reasoning += event.text;
        break;
      case OutputEvent::Kind::call_begin:
        calls.push_back({.id = {}, .name = event.text, .arguments = {}});
        break;
      case OutputEvent::Kind::call_arguments:
        calls.back().arguments += event.text;
        break;
      case OutputEvent::Kind::call_end:
        break;
    }
  }
};

}  // namespace quire
