#pragma once

#include <chrono>

namespace quire {

using Clock = std::chrono::steady_clock;

inline double milliseconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double, std::milli>(end - begin).count();
}

}  // namespace quire
