#pragma once

#include <string>
#include <vector>

namespace quire::cli {

// Steps side by side in time: one lane for each way something was run.
struct Timeline {
  struct Bar {
    double begin_ms = 0;
    double ms = 0;
    bool prefill = false;
  };
  struct Lane {
    std::string label;
    std::string note;  // shown under the lane
    std::vector<Bar> bars;
    double first_token_ms = 0;
  };
  std::string title;
  std::vector<Lane> lanes;
};

std::string timeline_svg(const Timeline& timeline);

}  // namespace quire::cli
