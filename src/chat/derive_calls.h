#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "chat/response_template.h"
#include "chat/sentinels.h"

namespace quire {

// How a template writes calls, from `text`: the two (or one) that it made of the sentinels, with what stands around them.
// `end`: what a template writes behind a text of the assistant. Nothing if no rule is found that reads it back.
std::optional<CallForm> derive_call_form(std::string_view text, std::string_view end,
                                         const std::vector<std::string>& silent);

}  // namespace quire
