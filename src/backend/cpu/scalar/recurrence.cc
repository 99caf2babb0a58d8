#include "backend/cpu/recurrence.h"

#include "backend/cpu/scalar/matmul.h"

namespace quire::scalar {

void use_recurrences(CpuKernels& kernels) {
  use_own_recurrences(kernels);
}

}  // namespace quire::scalar
