#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"

namespace quire {

// Where a model computes, as a user says it.
struct DeviceChoice {
  std::string device = "auto";   // cpu, cuda:N; auto: a GPU if there is one
  std::string kernels = "auto";  // of the device: exact, or one of its kernel sets
  uint32_t threads = 1;          // of the host
};

// Throws Error with a sentence if there is no such device or kernel set, or the device cannot be used.
std::unique_ptr<Backend> open_backend(const DeviceChoice& choice);

// The same device with the CPU beside it, for models that are split. Throws Error if the device is the CPU already.
std::unique_ptr<Backend> open_split_backend(const DeviceChoice& choice);

// What `auto` comes to on this machine.
std::string usual_device();

// A device of this machine, and why it cannot be used if it cannot.
struct DeviceReport {
  std::string name;         // as --device takes it
  std::string description;  // "NVIDIA H200, compute capability 9.0"
  std::string refusal;      // empty: it can be used
  size_t memory = 0, free_memory = 0;
};
// The CPU, then the GPUs. `problem`: why there are none, where something stands in the way.
struct DeviceList {
  std::vector<DeviceReport> devices;
  std::string problem;
};
DeviceList list_devices();

// The kernel sets that some device of this machine has, by their names.
std::vector<std::string> all_kernel_names();

}  // namespace quire
