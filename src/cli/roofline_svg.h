#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace quire::cli {

struct RooflinePoint {
  enum class Kind : uint8_t { round, square };
  std::string label;
  Kind kind = Kind::round;
  double ops_per_byte = 0;
  double gops = 0;
  double limit_gops = 0;  // what the machine allows for this mix of operations and bytes
};

// Operations per byte against operations per second, both logarithmic: under the slope memory is the limit, under a flat
// roof the multipliers are.
struct Roofline {
  struct Roof {
    std::string label;
    double gops = 0;
  };
  std::string title;
  double read_gb_s = 0;
  std::vector<Roof> roofs;
  std::vector<RooflinePoint> points;
};

// REQUIRES: every number is above zero.
std::string roofline_svg(const Roofline& roofline);

}  // namespace quire::cli
