#include "device/open_backend.h"

#include <charconv>
#include <utility>

#include <fmt/format.h>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/kernel_choice.h"
#include "backend/split_backend.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/thread_pool.h"
#if defined(QUIRE_CUDA_BUILT)
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/cuda_devices.h"
#include "backend/cuda/exact/cuda_exact_backend.h"
#endif

namespace quire {
namespace {

constexpr std::string_view kCuda = "cuda";

// N of "cuda:N"; plain "cuda" is the first. -1: neither.
int cuda_number(std::string_view device) {
  if (device == kCuda) return 0;
  if (!device.starts_with("cuda:")) return -1;
  const std::string_view digits = device.substr(kCuda.size() + 1);
  int number = -1;
  const auto [end, problem] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  return problem == std::errc() && end == digits.data() + digits.size() ? number : -1;
}

std::unique_ptr<Backend> open_cuda([[maybe_unused]] int number, [[maybe_unused]] const DeviceChoice& choice) {
#if defined(QUIRE_CUDA_BUILT)
  if (choice.kernels != "auto" && choice.kernels != "eager" && choice.kernels != "exact")
    throw Error(
        "a GPU has no kernels named '{}'; they are auto, eager (the same, started one by one) and exact",
        choice.kernels);
  const std::vector<cuda::CudaDevice> devices = cuda::list_cuda_devices().devices;
  if (devices.empty()) throw Error("--device {}: {}", choice.device, cuda::list_cuda_devices().problem);
  if (size_t(number) >= devices.size()) {
    throw Error("there is no GPU cuda:{}; this machine has {} (quire devices lists them)", number,
                devices.size());
  }
  if (!devices[size_t(number)].refusal.empty())
    throw Error("cuda:{} cannot be used: {}", number, devices[size_t(number)].refusal);
  if (choice.kernels == "exact") return std::make_unique<cuda::CudaExactBackend>(number);
  using Launches = cuda::CudaBackend::Launches;
  return std::make_unique<cuda::CudaBackend>(
      number, choice.kernels == "eager" ? Launches::one_by_one : Launches::recorded);
#else
  throw Error(
      "this quire was built without CUDA; build it where nvcc (CUDA 12.8 or later) is found, or use --device "
      "cpu");
#endif
}

}  // namespace

std::string usual_device() {
  for (const DeviceReport& device : list_devices().devices) {
    if (device.name != "cpu" && device.refusal.empty()) return device.name;
  }
  return "cpu";
}

std::unique_ptr<Backend> open_backend(const DeviceChoice& choice) {
  std::string device = choice.device;
  // A kernel set of the CPU is a wish for the CPU.
  if (device == "auto") device = choice.kernels == "auto" ? usual_device() : "cpu";
  if (device == "cpu") return std::make_unique<CpuBackend>(kernels_named(choice.kernels), choice.threads);
  const int number = cuda_number(device);
  if (number < 0) throw Error("'{}' is no device; it is auto, cpu, or cuda:N", choice.device);
  return open_cuda(number, choice);
}

std::unique_ptr<Backend> open_split_backend(const DeviceChoice& choice) {
  std::unique_ptr<Backend> device = open_backend(choice);
  if (device->traits().memory == MemoryKind::host)
    throw Error("a model is split between a GPU and the CPU, and the device is {}; quire devices lists GPUs",
                device->traits().device);
  const char* kernels = choice.kernels == "exact" ? "exact" : "auto";
  return std::make_unique<SplitBackend>(std::move(device),
                                        std::make_unique<CpuBackend>(kernels_named(kernels), choice.threads));
}

DeviceList list_devices() {
  DeviceList list;
  list.devices.push_back(
      {.name = "cpu",
       .description = fmt::format("{} threads, kernels {}", usable_cpus(), kernels_named("auto").name),
       .refusal = "",
       .memory = total_memory(),
       .free_memory = available_memory()});
#if defined(QUIRE_CUDA_BUILT)
  const cuda::CudaDevices found = cuda::list_cuda_devices();
  list.problem = found.problem;
  for (const cuda::CudaDevice& gpu : found.devices) {
    list.devices.push_back({.name = fmt::format("cuda:{}", gpu.number),
                            .description = fmt::format("{}, compute capability {}.{}", gpu.name,
                                                       gpu.capability / 10, gpu.capability % 10),
                            .refusal = gpu.refusal,
                            .memory = gpu.memory,
                            .free_memory = gpu.free_memory});
  }
#else
  list.problem = "this quire was built without CUDA";
#endif
  return list;
}

std::vector<std::string> all_kernel_names() {
  std::vector<std::string> names = kernel_names();
#if defined(QUIRE_CUDA_BUILT)
  names.push_back("eager");
#endif
  return names;
}

}  // namespace quire
