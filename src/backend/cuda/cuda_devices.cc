#include "backend/cuda/cuda_devices.h"

#include <fmt/format.h>

#include "backend/cuda/device_failure.h"
#include "backend/cuda/device_memory.h"

namespace quire::cuda {
namespace {

constexpr int kLeastCapability = 80;

CudaDevice look_at(int number) {
  CudaDevice device{.number = number, .name = {}, .refusal = {}};
  cudaDeviceProp properties{};
  cudaError_t result = cudaGetDeviceProperties(&properties, number);
  if (result == cudaSuccess) {
    device.name = properties.name;
    device.capability = properties.major * 10 + properties.minor;
    device.memory = properties.totalGlobalMem;
    if (device.capability < kLeastCapability) {
      device.refusal =
          fmt::format("its compute capability is {}.{}, and kernels are there for {}.{} and later",
                      properties.major, properties.minor, kLeastCapability / 10, kLeastCapability % 10);
      return device;
    }
    int before = 0;
    cudaGetDevice(&before);
    result = cudaSetDevice(number);
    size_t total = 0;
    if (result == cudaSuccess) result = cudaMemGetInfo(&device.free_memory, &total);
    cudaSetDevice(before);
  }
  if (result != cudaSuccess) {
    device.refusal = fmt::format("CUDA says \"{}\"", cudaGetErrorString(result));
    cudaGetLastError();
  }
  return device;
}

}  // namespace

CudaDevices list_cuda_devices() {
  CudaDevices found;
  int count = 0;
  const cudaError_t result = cudaGetDeviceCount(&count);
  if (result != cudaSuccess) cudaGetLastError();
  if (result == cudaErrorInsufficientDriver) {
    int driver = 0;
    cudaDriverGetVersion(&driver);
    found.problem = sentence_for_driver(driver, CUDART_VERSION);
  } else if (result != cudaSuccess) {
    found.problem = fmt::format("CUDA says \"{}\"", cudaGetErrorString(result));
  } else if (count == 0) {
    found.problem = "the NVIDIA driver knows no GPU";
  }
  for (int number = 0; number < count; ++number) found.devices.push_back(look_at(number));
  return found;
}

}  // namespace quire::cuda
