#pragma once

#include <string>
#include <vector>

#include "backend/cpu/peak_kernels.h"
#include "backend/yardstick.h"
#include "base/thread_pool.h"
#include "tensor/buffer.h"

namespace quire {

// The bandwidth of reading memory with prefetch, and the
// rates of int8, f32 and bf16 multiply-adds on operands from the first cache. Each is the best of several samples:
// whatever disturbs a sample can only make it slower. The first call of measure() tries every way that the CPU has,
// the later ones only the best of them.
class CpuYardstick : public Yardstick {
 public:
  CpuYardstick(uint32_t threads, const YardstickOptions& options);

  MachineRates measure() override;
  size_t buffer_bytes() const { return buffer_.size(); }

 private:
  using Read = uint64_t (*)(const std::byte* data, size_t bytes);
  struct ReadKernel {
    const char* method;
    Read read;
  };

  // Samples the candidates in turn and keeps the best alone; returns its rate in 10^9 a second.
  template <class Kernel, class Sample>
  double best_rate(std::vector<Kernel>& candidates, const Sample& sample) const;
  double read_rate(const ReadKernel& kernel, double seconds);
  double compute_rate(const PeakKernel& kernel, const PeakPanels& panels, double seconds);

  const double seconds_;
  ThreadPool pool_;
  Buffer buffer_;
  PeakPanels int8_panels_, f32_panels_, bf16_panels_;
  std::vector<ReadKernel> read_kernels_;
  std::vector<PeakKernel> int8_kernels_, f32_kernels_, bf16_kernels_;
};

}  // namespace quire
