#pragma once

#include <cstddef>

// How much one request may hold of what costs more than its bytes.
namespace quire {

inline constexpr size_t kMostMessages = 4096, kMostTools = 1024, kMostCalls = 256, kMostNameBytes = 256,
                        kMostStops = 16, kMostStopBytes = 1024, kMostUserBytes = 512;

}  // namespace quire
