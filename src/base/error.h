#pragma once

#include <stdexcept>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace quire {

// What went wrong in the world outside: a bad file, a bad option, a missing device. The text is a sentence
// for a person: what is wrong, where, and what to do. Caught in main or at a request's edge. Bugs are CHECKs
// instead.
class Error : public std::runtime_error {
 public:
  template <class... Args>
  explicit Error(fmt::format_string<Args...> format, Args&&... args)
      : std::runtime_error(fmt::format(format, std::forward<Args>(args)...)) {}
};

}  // namespace quire
