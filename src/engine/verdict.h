#pragma once

#include <string>
#include <vector>

#include "engine/request.h"

namespace quire {

// What a request's figures say in words: whether it was slow to start or slow to stream, by how much, why, and what
// would help.
struct Verdict {
  bool slow_to_start = false;
  bool slow_to_stream = false;
  std::vector<std::string> lines;
};
Verdict judge(const Answer& answer);

}  // namespace quire
