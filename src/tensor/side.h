#pragma once

#include <cstdint>

namespace quire {

// A backend may be two: a device, and beside it the host's processors for what the device's memory does not hold. Of a backend
// that is one, everything is the device's.
enum class Side : uint8_t { device, host };

}  // namespace quire
