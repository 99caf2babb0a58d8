#pragma once

#include <memory>
#include <vector>

#include "ranks/ranks.h"

namespace quire {

// Ranks that are threads of one process: what tests have in place of MPI. Each is its own thread's; that of rank 0 tells the others that it
// has left when it is destroyed. What one gives up ends for all in an Error.
std::vector<std::unique_ptr<Ranks>> make_thread_ranks(uint32_t count);

}  // namespace quire
