#pragma once

#include <cstddef>

namespace quire {

// What the system could give this process without swapping, its cgroup's limit included; 0 if it does not say.
size_t available_memory();

// All of the machine's, or the limit of its cgroup if that is lower; 0 if the system does not say.
size_t total_memory();

// What was freed goes back to the system now, also from the middle of the heap. Takes milliseconds.
void return_free_memory();

// From now on large blocks are pages of their own, which go back to the system when they are freed. For a process that
// runs for long: by itself the allocator raises the size above which it does so to the largest that was ever freed.
void keep_large_blocks_apart();

}  // namespace quire
