#include "chat/written_call.h"

#include "chat/sentinels.h"

namespace quire {
namespace {

// A literal with something where any text may stand.
std::string filled(std::string literal, std::string_view key, std::string_view any) {
  std::string text;
  for (const char c : literal) {
    if (c == kAnyText) {
      text += any;
    } else if (c == kSameKey) {
      text += key;
    } else {
      text += c;
    }
  }
  return text;
}

}  // namespace

std::string written_call(const CallForm& form) {
  using S = Sentinels;
  using Body = CallForm::Body;
  const std::string name(S::kName), arguments = S::arguments().dump();
  std::string call;
  const auto member = [&](std::string_view key, const std::string& value, const std::string& any) {
    const std::string line = form.value_on_lines ? "\n" : "";
    call += filled(form.key_open, key, "0") + std::string(key) +
            filled(form.key_end, key, any.empty() ? "0" : any) + line + value + line +
            filled(form.value_end, key, "0");
  };
  switch (form.body) {
    case Body::json:
      call = form.name_key.empty() ? "{\"" + name + "\": " + arguments + "}"
                                   : "{\"" + form.name_key + "\": \"" + name + "\", \"" + form.arguments_key +
                                         "\": " + arguments + "}";
      if (form.list) call = "[" + call + "]";
      break;
    case Body::named_json:
      call = name + form.name_end + arguments;
      break;
    case Body::tags:
      call = name + form.name_end;
      member(S::kKeyA, std::string(S::kValueA), form.any_text);
      member(S::kKeyB, std::string(S::kValueB), form.any_json);
      break;
    case Body::loose: {
      const std::string quote = form.quote.empty() ? "\"" : form.quote;
      call = name + form.name_end + "{" + std::string(S::kKeyA) + ":" + quote + std::string(S::kValueA) +
             quote + "," + std::string(S::kKeyB) + ":" + std::string(S::kValueB) + "}";
      break;
    }
    case Body::python:
      call = "[" + name + "(" + std::string(S::kKeyA) + "=\"" + std::string(S::kValueA) + "\"," +
             std::string(S::kKeyB) + "=" + std::string(S::kValueB) + ")]";
      break;
  }
  return filled(form.section_open + form.open + call + form.close + form.section_close, "", "0");
}

}  // namespace quire
