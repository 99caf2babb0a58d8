#pragma once

#include "runner/runner.h"

namespace quire {

// What a rank other than the first does: whatever rank 0's runner does, with its own part of the model, until rank 0 has left. All of
// `model` must be this rank's, `layout` the one that rank 0 has. Throws Error if a step cannot be computed; then the others must be told
// (Ranks::give_up).
void follow(const RunnerModel& model, const KvLayout& layout);

}  // namespace quire
