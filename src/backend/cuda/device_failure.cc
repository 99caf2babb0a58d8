#include "backend/cuda/device_failure.h"

#include <fmt/format.h>

namespace quire::cuda {
namespace {

// cudaError_t, as far as it matters here.
enum Code : int {
  kMemoryAllocation = 2,
  kInitializationError = 3,
  kInsufficientDriver = 35,
  kCallRequiresNewerDriver = 36,
  kDevicesUnavailable = 46,
  kNoDevice = 100,
  kNoKernelImage = 209,
  kEccUncorrectable = 214,
  kNvlinkUncorrectable = 220,
  kUnsupportedPtx = 222,
  kContained = 226,
  kIllegalAddress = 700,
  kLaunchTimeout = 702,
  kContextIsDestroyed = 709,
  kAssert = 710,
  kHardwareStackError = 714,
  kIllegalInstruction = 715,
  kMisalignedAddress = 716,
  kInvalidAddressSpace = 717,
  kInvalidPc = 718,
  kLaunchFailure = 719,
  kTensorMemoryLeak = 721,
  kSystemDriverMismatch = 803,
  kMpsClientTerminated = 810,
  kExternalDevice = 911,
  kUnknown = 999,
};

std::string gigabytes(size_t bytes) {
  return fmt::format("{:.2f} GB", double(bytes) / 1e9);
}

const char* advice_for(int code) {
  switch (code) {
    case kEccUncorrectable:
    case kNvlinkUncorrectable:
    case kContained:
      return "its hardware found an error that it could not mend; it needs a reset (nvidia-smi --gpu-reset) "
             "or a "
             "repair";
    case kLaunchTimeout:
      return "it was stopped because a kernel took too long, as systems do whose screen it drives";
    case kContextIsDestroyed:
    case kMpsClientTerminated:
      return "somebody else ended its work for this process";
    default:
      return "start quire again; the system's log (dmesg, lines with Xid) says what the driver saw";
  }
}

}  // namespace

Failure failure_of(int code) {
  switch (code) {
    case kMemoryAllocation:
      return Failure::memory;
    case kInitializationError:
    case kInsufficientDriver:
    case kCallRequiresNewerDriver:
    case kDevicesUnavailable:
    case kNoDevice:
    case kNoKernelImage:
    case kUnsupportedPtx:
    case kSystemDriverMismatch:
      return Failure::unusable;
    case kEccUncorrectable:
    case kNvlinkUncorrectable:
    case kContained:
    case kIllegalAddress:
    case kLaunchTimeout:
    case kContextIsDestroyed:
    case kAssert:
    case kHardwareStackError:
    case kIllegalInstruction:
    case kMisalignedAddress:
    case kInvalidAddressSpace:
    case kInvalidPc:
    case kLaunchFailure:
    case kTensorMemoryLeak:
    case kMpsClientTerminated:
    case kExternalDevice:
    case kUnknown:
      return Failure::lost;
    default:
      return Failure::of_call;
  }
}

std::string sentence_for(const FailedCall& failed) {
  switch (failure_of(failed.code)) {
    case Failure::memory:
      return fmt::format(
          "the GPU has no memory left (in {}); choose a smaller --ctx, --kv-memory or --max-sequences, or "
          "end what "
          "else uses it (nvidia-smi lists it)",
          failed.place);
    case Failure::unusable:
      if (failed.code == kDevicesUnavailable)
        return "the GPU is there, but another process has it for itself, or it allows none (nvidia-smi -q "
               "says its "
               "compute mode); end that process, or use --device cpu";
      return fmt::format(
          "CUDA has no device that it can use (\"{}\"); quire devices says why, --device cpu goes without",
          failed.words);
    case Failure::lost:
      return fmt::format("the GPU is lost to this process: CUDA says \"{}\" ({}) in {}; {}", failed.words,
                         failed.code, failed.place, advice_for(failed.code));
    case Failure::of_call:
      break;
  }
  return fmt::format("CUDA failed with \"{}\" in {} ({})", failed.words,
                     failed.call.substr(0, failed.call.find('(')), failed.place);
}

std::string sentence_for(const MissingMemory& missing) {
  std::string there;
  if (missing.total > 0)
    there = fmt::format(": {} of {} are free, and other programs may have the rest (nvidia-smi lists them)",
                        gigabytes(missing.free), gigabytes(missing.total));
  return fmt::format(
      "the GPU has no room for {} more{}; choose a smaller --ctx, --kv-memory or --max-sequences, or leave "
      "layers to the CPU with --gpu-layers",
      gigabytes(missing.wanted), there);
}

std::string sentence_for_driver(int driver, int runtime) {
  if (driver == 0) return "there is no NVIDIA driver";
  return fmt::format(
      "the NVIDIA driver is for CUDA {}.{}, and this program needs one for {}.{}; install a newer driver",
      driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
}

}  // namespace quire::cuda
