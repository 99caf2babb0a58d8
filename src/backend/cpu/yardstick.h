#pragma once

#include <string>
#include <vector>

#include "backend/cpu/peak_kernels.h"
#include "base/thread_pool.h"
#include "tensor/buffer.h"

namespace quire {

// What a machine can do with a number of threads, and what it did it with.
struct MachineRates {
  double read_gb_s = 0;
  double int8_gops = 0;  // a multiply and an add are two
  double f32_gflops = 0;
  double bf16_gflops = 0;  // that of f32 where bf16 have no instruction of their own
  std::string read_method;
  std::string int8_instruction;
  std::string f32_instruction;
  std::string bf16_instruction;

  bool has_bf16() const { return bf16_instruction != f32_instruction; }
};

// By how much, at most, one of the rates differs: 0.1 where one is 10 % below the other.
double largest_change(const MachineRates& a, const MachineRates& b);

// The larger of each.
MachineRates best_of(const MachineRates& a, const MachineRates& b);

struct YardstickOptions {
  uint32_t threads = 1;
  double seconds = 2;       // that each rate is measured for
  size_t buffer_bytes = 0;  // what is read; 0: several times what the caches hold
};

// Measures the limits that speed is stated as a share of: the bandwidth of reading memory with prefetch, and the
// rates of int8, f32 and bf16 multiply-adds on operands from the first cache. Each is the best of several samples:
// whatever disturbs a sample can only make it slower. The first call of measure() tries every way that the CPU has,
// the later ones only the best of them.
class Yardstick {
 public:
  explicit Yardstick(const YardstickOptions& options);

  MachineRates measure();
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
