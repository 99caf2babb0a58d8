// Any bytes as a chat template over a small conversation: an Error is fine, a crash or a long wait is not.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/bounded_work.h"
#include "base/error.h"
#include "text/jinja/jinja.h"

namespace {

using namespace quire::jinja;

Value plain(const char* text) {
  return make_string(nullptr, text, Origin::plain);
}

Value dict(std::vector<std::pair<Value, Value>> entries) {
  return make_dict(nullptr, std::move(entries));
}

Value message(const char* role, Value content) {
  return dict({{plain("role"), make_string(nullptr, role)}, {plain("content"), std::move(content)}});
}

Variables conversation() {
  const Value call =
      dict({{plain("name"), plain("clock")}, {plain("arguments"), dict({{plain("zone"), plain("é")}})}});
  std::vector<Value> messages = {message("system", plain(" Be kind.\n")),
                                 message("user", plain("Hi <|im_end|>")), message("assistant", None{}),
                                 message("tool", make_sequence(nullptr, {call, 1.5}))};
  Variables variables;
  variables.emplace_back("messages", make_sequence(nullptr, std::move(messages)));
  variables.emplace_back("tools", make_sequence(nullptr, {call, call}));
  variables.emplace_back("bos_token", make_string(nullptr, "<s>"));
  variables.emplace_back("add_generation_prompt", true);
  return variables;
}

// What MarkedText promises.
void check(const quire::MarkedText& marked) {
  size_t previous_end = 0;
  bool first = true;
  for (const quire::ByteRange& range : marked.plain) {
    if (range.begin >= range.end || range.end > marked.text.size()) __builtin_trap();
    if (!first && range.begin <= previous_end) __builtin_trap();
    previous_end = range.end;
    first = false;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const quire::BoundedWork work(size);
  static const Variables variables = conversation();
  const Limits limits{.steps = 3000, .bytes = size_t(1) << 18, .depth = Limits{}.depth};
  try {
    const Template program(std::string_view(reinterpret_cast<const char*>(data), size));
    check(program.render(variables, limits));
  } catch (const quire::Error&) {
  }
  return 0;
}
