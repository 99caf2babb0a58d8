#pragma once

#include "backend/cuda/device_memory.h"
#include "backend/yardstick.h"

namespace quire::cuda {

// The bandwidth of a kernel that only reads, and the rate of bf16 products with f32 sums, by our own kernels. Each is the best of
// several samples.
class CudaYardstick : public Yardstick {
 public:
  CudaYardstick(int device, const YardstickOptions& options);

  MachineRates measure() override;

 private:
  // Units a second, the best of samples; start() begins one and returns its units.
  template <class Start>
  double best_rate(const Start& start) const;

  int device_;
  double seconds_;
  Stream stream_;
  DeviceBuffer memory_, out_;
};

}  // namespace quire::cuda
