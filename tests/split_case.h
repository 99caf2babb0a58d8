#pragma once

#include <memory>

#include "backend/cpu/cpu_backend.h"
#include "backend/split_backend.h"
#include "late_backend.h"

// Backends with two sides that need no GPU.

namespace quire {

// What the device of such a backend does with what it is asked for.
enum class CpuDevice {
  eager,     // at once
  late,      // when somebody waits for it
  amending,  // the same, and every third draw is settled after the next step has begun
};

struct OwnCpu {
  CpuBackend cpu;
};
// A CPU of its own that works late.
class LateCpu : private OwnCpu, public LateBackend {
 public:
  LateCpu(CpuKernels kernels, uint32_t threads, uint32_t amended_of)
      : OwnCpu{CpuBackend(kernels, threads)}, LateBackend(cpu, amended_of) {}
};

inline std::unique_ptr<Backend> split_of_cpus(CpuKernels kernels, uint32_t threads, CpuDevice device) {
  auto host = std::make_unique<CpuBackend>(kernels, threads);
  if (device == CpuDevice::eager)
    return std::make_unique<SplitBackend>(std::make_unique<CpuBackend>(kernels, threads), std::move(host));
  return std::make_unique<SplitBackend>(
      std::make_unique<LateCpu>(kernels, threads, device == CpuDevice::amending ? 3 : 0), std::move(host));
}

}  // namespace quire
