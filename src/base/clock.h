#pragma once

#include <chrono>
#include <cstdint>

namespace quire {

using Clock = std::chrono::steady_clock;

inline double milliseconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double, std::milli>(end - begin).count();
}

inline int64_t seconds_since_1970() {
  using namespace std::chrono;
  return duration_cast<seconds>(system_clock::now().time_since_epoch()).count();
}

}  // namespace quire
