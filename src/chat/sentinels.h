#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/json.h"

namespace quire {

// A conversation whose every word can be found again in what a template makes of it.
struct Sentinels {
  static constexpr std::string_view kUser = "QxUserxQ", kText = "QxTextxQ", kReasoning = "QxThinkxQ",
                                    kResult = "QxResultxQ", kName = "qxnamexq", kKeyA = "qxkeyaxq",
                                    kKeyB = "qxkeybxq", kValueA = "qxvalueaxq", kValueB = "471147";
  static std::string id(uint32_t call);  // as long as Mistral's must be
  static OrderedJson arguments();
  static OrderedJson tools();
};

}  // namespace quire
