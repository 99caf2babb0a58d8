#pragma once

#include <string>

#include "chat/response_template.h"

namespace quire {

// A call of the sentinels' tool in that form, written as forced calls are.
std::string written_call(const CallForm& form);

}  // namespace quire
