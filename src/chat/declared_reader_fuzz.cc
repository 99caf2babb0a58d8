// Any bytes as a response_template, what the prompt holds of the answer, and the answer, with zero bytes between: an Error of the
// template is fine. Any answer is read, the same whole and in pieces, in bounded time and memory.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "base/bounded_work.h"
#include "base/check.h"
#include "base/error.h"
#include "chat/declared_reader.h"

namespace {

using namespace quire;

const OrderedJson& tools() {
  static const OrderedJson kTools = parse_ordered_json(
      R"([{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {
        "a": {"type": "string"}, "b": {"type": "integer"}, "c": {"type": "boolean"}, "d": {"type": "array"}}}}}])",
      "the tools");
  return kTools;
}

WholeOutput read(const DeclaredForm& form, bool calls, std::string_view begun, std::string_view text,
                 size_t piece) {
  DeclaredReader reader(form, ArgumentTypes(tools()), calls, begun);
  OutputEvents events;
  for (size_t at = 0; at < text.size(); at += piece) reader.push(text.substr(at, piece), events);
  reader.finish(events);
  WholeOutput output;
  for (const OutputEvent& event : events) output.add(event);
  CHECK(output.calls.size() == reader.calls());
  return output;
}

std::string_view next_part(std::string_view& rest) {
  const size_t end = std::min(rest.find('\0'), rest.size());
  const std::string_view part = rest.substr(0, end);
  rest.remove_prefix(std::min(rest.size(), end + 1));
  return part;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tools();
  if (size < 1) return 0;
  const BoundedWork work(size, {.seconds = 4, .seconds_per_byte = 1e-3});
  std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::string json(next_part(rest));
  const std::string begun = replace_broken_utf8(next_part(rest));
  std::optional<DeclaredForm> form;
  try {
    form = read_declared_form(json);
  } catch (const Error& error) {
    CHECK(*error.what() != '\0');
    return 0;
  }
  form->begun(begun);
  form->call_ends();
  const size_t piece = 1 + data[0] % 16;
  const WholeOutput whole = read(*form, true, begun, rest, SIZE_MAX / 2),
                    pieces = read(*form, true, begun, rest, piece);
  CHECK(whole.text == pieces.text && whole.reasoning == pieces.reasoning && whole.calls == pieces.calls);
  CHECK(is_valid_utf8(whole.text) && is_valid_utf8(whole.reasoning));
  for (const ToolCall& call : whole.calls)
    CHECK(!call.name.empty() && parse_ordered_json(call.arguments, "arguments").is_object());
  CHECK(read(*form, false, begun, rest, piece).calls.empty());
  return 0;
}
