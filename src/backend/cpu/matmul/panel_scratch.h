#pragma once

#include <cstddef>

namespace quire {

// Memory of this thread for an opened panel, aligned to 64 bytes; valid until the thread's next call.
std::byte* panel_scratch(size_t bytes);

}  // namespace quire
