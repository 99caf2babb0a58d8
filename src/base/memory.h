#pragma once

#include <cstddef>

namespace quire {

// What the system could give this process without swapping, its cgroup's limit included; 0 if it does not say.
size_t available_memory();

}  // namespace quire
