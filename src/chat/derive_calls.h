#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"
#include "chat/response_template.h"

namespace quire {

// A conversation whose every word can be found again in what a template makes of it.
struct Sentinels {
  static constexpr std::string_view kUser = "QxUserxQ", kText = "QxTextxQ", kReasoning = "QxThinkxQ",
                                    kResult = "QxResultxQ", kName = "qxnamexq", kKeyA = "qxkeyaxq", kKeyB = "qxkeybxq",
                                    kValueA = "qxvalueaxq", kValueB = "471147";
  static std::string id(uint32_t call);  // as long as Mistral's must be
  static OrderedJson arguments();
  static OrderedJson tools();
};

// How a template writes calls, from `text`: the two (or one) that it made of the sentinels, with what stands around them.
// `end`: what a template writes behind a text of the assistant. Nothing if no rule is found that reads it back.
std::optional<CallForm> derive_call_form(std::string_view text, std::string_view end,
                                         const std::vector<std::string>& silent);

}  // namespace quire
