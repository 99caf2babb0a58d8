#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "grammar/grammar_source.h"
#include "grammar/rules.h"

namespace quire::grammar {

// In the literals of a form: any short word (an index, an id), and the key that came before. Not inside special tokens.
inline constexpr char kAnyWord = '\x02', kItsKey = '\x01';

inline constexpr uint32_t kAnyNumber = ExprPool::kNoMost;  // of calls

// How one tool call is written: what stands before the tool's name, between the name and its arguments, and after them. May hold
// special tokens (special_token_bytes).
struct CallForm {
  enum class Body : uint8_t {
    json,    // a JSON object
    tags,    // each argument as a key and a text between literals
    loose,   // an object with bare keys and quotes of its own
    python,  // (key=value, ...)
  };
  Body body = Body::json;
  std::string before = "<tool_call>\n{\"name\": \"";
  std::string between = "\", \"arguments\": ";
  std::string after = "}\n</tool_call>";
  std::string separator = "\n";  // between two calls

  std::string key_open = {}, key_end = {}, value_end = {};  // tags
  std::string key_end_of_json = {};  // tags: of values that are no texts; empty: the same
  bool value_on_lines = false;       // tags: a line break before and after each value
  std::string quote = {};            // loose: around a text; empty: as JSON has it
  // What no text in the arguments holds, as letters: whoever reads the call would take it for an end. tags: what ends a value, at least.
  std::vector<std::string> never = {};

  bool operator==(const CallForm&) const = default;
};

struct Tool {
  std::string name;
  OrderedJson parameters;  // a JSON schema of the arguments; null: any object
  // By argument: what whoever reads the call takes a text for, where it can be taken for that. None: whatever it looks like.
  std::vector<std::pair<std::string, std::vector<std::string>>> types = {};
};

// Where calls may stand.
enum class CallPlace : uint8_t {
  alone,      // the answer is calls and nothing else: one at least
  after_text  // any text, in which `trigger` begins a call; none is needed
};

struct CallRules {
  std::vector<Tool> tools;
  CallForm form = {};
  CallPlace place = CallPlace::alone;
  std::string trigger = "<tool_call>";  // what `form.before` begins with, and text has nowhere else
  uint32_t most_calls = 1;              // kAnyNumber: without end
  bool strict = true;                   // false: arguments are any object
  OrderedJson or_else =
      {};  // alone: a JSON schema that the answer keeps to if it is no call; null: it must be one
};
// The same as a source for GrammarCompiler, and back.
GrammarSource call_source(const CallRules& calls);
CallRules calls_of_source(const std::string& text);

// Throws Error with a sentence if the form cannot carry what a schema asks for.
Rules read_calls(const CallRules& calls);

}  // namespace quire::grammar
