#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace quire {

// In the literals of a form: any short text (an index, an id), and the key that came before.
inline constexpr char kAnyText = '\x02', kSameKey = '\x01';

struct DeclaredForm;

// How calls are written. White space in literals stands for any, or none.
struct CallForm {
  enum class Body : uint8_t {
    json,        // {"name": ..., "arguments": {...}}, or a list of such
    named_json,  // the name, then a JSON object
    tags,        // the name, then each argument as a key and a text between literals
    loose,       // the name, then an object with bare keys and quotes of its own
    python,      // [name(key=value, ...), ...]
  };
  Body body = Body::json;
  std::string section_open = {}, section_close = {};  // around all calls; empty: there is nothing
  std::string open = {};                              // of one call. Empty: the answer is nothing but calls
  std::string close = {};                             // may be empty
  std::string name_key = "name", arguments_key = "arguments";  // json. No name_key: the name is the key
  std::string name_end = {};                                   // what separates the name from what follows
  std::string key_open = {}, key_end = {}, value_end = {};     // tags
  bool value_on_lines = false;  // tags: a line break before and after is not the value's
  // tags: what the template writes for the any text of key_end, before a text and before another value
  std::string any_text = {}, any_json = {};
  bool list = false;       // json: the template writes a list of calls
  std::string quote = {};  // loose

  bool is_bare() const { return open.empty() && section_open.empty(); }
  bool operator==(const CallForm&) const = default;
};

struct ReasoningForm {
  std::string open, close;
  bool operator==(const ReasoningForm&) const = default;
};

// The inverse of a chat template: how to read what the model writes after it. Plain data.
struct ResponseTemplate {
  enum class Source : uint8_t { declared, derived, built_in, generic };
  Source source = Source::built_in;
  std::vector<ReasoningForm> reasoning = {};
  std::vector<CallForm> calls = {};
  std::vector<std::string> silent = {};  // that mean nothing to a reader: "here the answer proper begins"
  // The answer is several messages, each with a header that says what it is: <|channel|>analysis<|message|>.
  bool channels = false;
  // The one that the model brings: then answers are read by it, and the rest says how calls are made.
  std::shared_ptr<const DeclaredForm> declared = {};

  // What marks something, as a model's special tokens spell it.
  std::vector<std::string> literals() const;
};

// What begins and ends the messages of an answer that has several.
inline constexpr std::string_view kMessageMarks[] = {"<|start|>",  "<|end|>", "<|call|>",
                                                     "<|return|>", "<|eom|>", "<|eot|>"};

std::string_view name(ResponseTemplate::Source source);

// What every model has that was trained to reason or to call tools, if its template does not say otherwise: the pairs
// that `template_source` spells. For templates that know no tools: calls as the generic prompt asks for them.
ResponseTemplate known_markers(std::string_view template_source);

// The form that models are asked for whose templates know no tools.
CallForm hermes_form();

}  // namespace quire
