#pragma once

#include <string>
#include <vector>

#include "explain/phases.h"

namespace quire::cli {

// Steps side by side in time: one lane for each way something was run.
struct Timeline {
  using Bar = PassTime;
  struct Lane {
    std::string label;
    std::string note;  // shown under the lane
    std::vector<Bar> bars;
    double first_token_ms = 0;
  };
  std::string title;
  std::vector<Lane> lanes;
};

// A lane of the passes of one request.
inline Timeline::Lane timeline_lane(std::string label, std::string note, const WayFigures& way) {
  return {std::move(label), std::move(note), way.times, way.ttft_ms};
}

std::string timeline_svg(const Timeline& timeline);

}  // namespace quire::cli
