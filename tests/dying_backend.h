#pragma once

#include <atomic>

#include "backend/cpu/cpu_backend.h"
#include "backend/device_lost.h"

namespace quire {

// A CPU that says of itself that it is a device, and may fail as one does.
class DyingBackend : public CpuBackend {
 public:
  static constexpr size_t kTotal = size_t(1) << 30, kFree = size_t(100) << 20;
  using CpuBackend::CpuBackend;

  BackendTraits traits() const override {
    BackendTraits traits = CpuBackend::traits();
    traits.device = "cuda:0";
    traits.memory = MemoryKind::device;
    return traits;
  }
  size_t available_memory() const override { return kFree; }
  size_t total_memory() const override { return kTotal; }

  void attend(const AttendParams& params) override {
    if (failing_ > 0) {
      --failing_;
      throw Error("the GPU has no room for 3.00 GB more");
    }
    check();
    CpuBackend::attend(params);
  }
  Mark mark() override {
    check();
    return CpuBackend::mark();
  }
  void wait(Mark mark) override {
    check();
    CpuBackend::wait(mark);
  }

  // From now on it does nothing any more.
  void die() { dead_ = true; }
  // So many of the next calls fail, and those after them do not.
  void fail(int calls) { failing_ = calls; }

 private:
  void check() const {
    if (dead_) throw DeviceLost("the GPU is lost to this process");
  }
  std::atomic<bool> dead_ = false;
  std::atomic<int> failing_ = 0;
};

}  // namespace quire
