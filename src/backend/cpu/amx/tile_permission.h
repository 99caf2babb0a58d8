#pragma once

namespace quire {

// Whether this process may multiply int8 in tiles (AMX): the CPU can, and Linux, which keeps such large state for a
// thread only if its process has asked, agrees. Asks it; asking again changes nothing.
bool may_use_int8_tiles();

// The same for bf16.
bool may_use_bf16_tiles();

}  // namespace quire
