#pragma once

#include "base/error.h"

namespace quire {

// The device will not compute any more in this process: whatever it is asked for fails in the same way. All other errors of a
// device concern what was asked for, and the next may succeed.
class DeviceLost : public Error {
 public:
  using Error::Error;
};

}  // namespace quire
