#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace quire::cuda {

// A GPU that the driver knows.
struct CudaDevice {
  int number = 0;
  std::string name;
  int capability = 0;  // 90 for 9.0
  size_t memory = 0, free_memory = 0;
  std::string refusal;  // why it cannot be used; empty: it can
};

struct CudaDevices {
  std::vector<CudaDevice> devices;
  std::string problem;  // why there are none, if there are none
};

// Never throws for want of a driver or a GPU. Asks each GPU for its memory, which takes a moment the first time.
CudaDevices list_cuda_devices();

}  // namespace quire::cuda
