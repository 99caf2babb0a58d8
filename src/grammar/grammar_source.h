#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "grammar/grammar.h"

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
Rules read_calls(const CallRules& calls);

// What an answer has to keep to, as it was asked for.
struct GrammarSource {
  enum class Kind : uint8_t { json_schema, regex, grammar, calls };
  Kind kind = Kind::json_schema;
  std::string text;  // the schema, the regular expression, the grammar (GBNF or Lark), or CallRules as JSON

  static GrammarSource json_object() { return {Kind::json_schema, R"({"type":"object"})"}; }
  // One of these texts.
  static GrammarSource choice(const std::vector<std::string>& texts);
  static GrammarSource calls(const CallRules& calls);
  bool operator==(const GrammarSource&) const = default;
};

// Throws Error with a sentence if it cannot be understood or followed exactly, within bounded time and memory.
Rules read_source(const GrammarSource& source);

// Compiles grammars over the tokens of one model, and remembers the last ones. Any thread.
class GrammarCompiler {
 public:
  // `token_bytes`: by token; empty: it stands for no text.
  explicit GrammarCompiler(std::vector<std::string> token_bytes);

  std::shared_ptr<Grammar> compile(const GrammarSource& source);

 private:
  static constexpr size_t kKept = 16;
  static constexpr size_t kMostSourceBytes = size_t(1) << 20;

  std::shared_ptr<const TokenTrie> tokens_;
  std::mutex mutex_;
  std::list<std::pair<GrammarSource, std::shared_ptr<Grammar>>> kept_;  // the newest first
};

}  // namespace quire::grammar
