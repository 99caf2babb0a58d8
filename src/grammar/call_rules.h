#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "grammar/grammar_source.h"
#include "grammar/rules.h"

namespace quire::grammar {

// How one tool call is written: what stands before the tool's name, between the name and its arguments (a JSON object), and after
// them. May hold special tokens (special_token_bytes).
struct CallForm {
  std::string before = "<tool_call>\n{\"name\": \"";
  std::string between = "\", \"arguments\": ";
  std::string after = "}\n</tool_call>";
  std::string separator = "\n";  // between two calls
};

struct Tool {
  std::string name;
  OrderedJson parameters;  // a JSON schema of the arguments; null: any object
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
  uint32_t most_calls = 1;              // ExprPool::kNoMost: any number
  bool strict = true;                   // false: arguments are any object
};
// The same as a source for GrammarCompiler, and back.
GrammarSource call_source(const CallRules& calls);
CallRules calls_of_source(const std::string& text);

Rules read_calls(const CallRules& calls);

}  // namespace quire::grammar
