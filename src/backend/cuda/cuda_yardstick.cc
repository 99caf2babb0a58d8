#include "backend/cuda/cuda_yardstick.h"

#include <algorithm>

#include "backend/cuda/peak_kernels.h"
#include "base/clock.h"

namespace quire::cuda {
namespace {

constexpr size_t kReadBytes = size_t(1) << 30;  // many times the largest cache
constexpr uint32_t kSweeps = 20'000;
constexpr int kLeastSamples = 3;

}  // namespace

CudaYardstick::CudaYardstick(int device, const YardstickOptions& options)
    : device_(device), seconds_(options.seconds), memory_(kReadBytes), out_(sizeof(float)) {
  memory_.fill(1);
}

template <class Start>
double CudaYardstick::best_rate(const Start& start) const {
  const Event before, after;
  double best = 0;
  const Clock::time_point begin = Clock::now();
  for (int i = 0; i < kLeastSamples || milliseconds_between(begin, Clock::now()) < 1e3 * seconds_; ++i) {
    before.record(stream_.get());
    const double units = start();
    after.record(stream_.get());
    after.wait();
    best = std::max(best, units / (1e-3 * double(after.ms_since(before))));
  }
  return best;
}

MachineRates CudaYardstick::measure() {
  CUDA_CHECK(cudaSetDevice(device_));
  MachineRates rates;
  rates.read_gb_s = best_rate([&] {
                      launch_read(memory_.data(), memory_.bytes(), out_.as<uint32_t>(), stream_.get());
                      return double(memory_.bytes());
                    }) /
                    1e9;
  const bool hopper = compute_capability() == 90;
  rates.bf16_gflops = best_rate([&] {
                        return hopper ? launch_hopper_products(kSweeps, out_.as<float>(), stream_.get())
                                      : launch_products(kSweeps, out_.as<float>(), stream_.get());
                      }) /
                      1e9;
  rates.read_method = "16-byte loads";
  rates.bf16_instruction = hopper ? "wgmma" : "mma";
  // All products are of bf16.
  rates.int8_gops = rates.f32_gflops = rates.bf16_gflops;
  rates.int8_instruction = rates.f32_instruction = rates.bf16_instruction;
  return rates;
}

}  // namespace quire::cuda
