#pragma once

#include <string>

namespace quire {

[[noreturn]] void check_failed(const char* condition, const char* file, int line);

}  // namespace quire

// A condition that only a bug can break. Kept in release builds.
#define CHECK(condition) \
  (static_cast<bool>(condition) ? void(0) : ::quire::check_failed(#condition, __FILE__, __LINE__))
