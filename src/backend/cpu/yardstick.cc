#include "backend/cpu/yardstick.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/memory.h"
#include "tensor/float16.h"

namespace quire {
namespace {

constexpr size_t kLine = 64;
constexpr size_t kPrefetchAhead = 16 * 1024;
constexpr size_t kReadGrain = 2 << 20;
constexpr size_t kLeastBuffer = size_t(256) << 20;
constexpr size_t kTasksPerThread = 8;    // threads that began late or were disturbed take fewer
constexpr double kRoundSeconds = 0.002;  // of tasks for all threads: starting them takes microseconds
constexpr int kSamples = 8;

// Whatever loops compute ends here, so that no compiler leaves them out.
std::atomic<uint64_t> sink{0};

typedef uint64_t Words __attribute__((vector_size(16)));

// As __builtin_prefetch counts: 1 brings a line to the third cache, 2 to the second.
constexpr int kNoPrefetch = -1;

template <int kLocality>
uint64_t read(const std::byte* data, size_t bytes) {
  Words sums[kLine / sizeof(Words)] = {};
  for (size_t at = 0; at + kLine <= bytes; at += kLine) {
    if constexpr (kLocality != kNoPrefetch) __builtin_prefetch(data + at + kPrefetchAhead, 0, kLocality);
#pragma GCC unroll 4  // word by word: a line that is copied as a whole goes over the stack
    for (size_t i = 0; i < kLine / sizeof(Words); ++i) {
      Words word;
      std::memcpy(&word, data + at + i * sizeof(Words), sizeof(Words));
      sums[i] ^= word;
    }
  }
  const Words sum = sums[0] ^ sums[1] ^ sums[2] ^ sums[3];
  return sum[0] ^ sum[1];
}

// Four times the largest cache: what was read in one pass is gone in the next.
size_t default_buffer_bytes() {
  const long cache = std::max(::sysconf(_SC_LEVEL3_CACHE_SIZE), ::sysconf(_SC_LEVEL2_CACHE_SIZE));
  const size_t wanted = std::max(kLeastBuffer, 4 * size_t(std::max(cache, 0L)));
  const size_t memory = available_memory();
  return memory == 0 ? kLeastBuffer : std::min(wanted, memory / 8);
}

}  // namespace

CpuYardstick::CpuYardstick(uint32_t threads, const YardstickOptions& options)
    : seconds_(options.seconds),
      pool_(threads),
      buffer_(options.buffer_bytes > 0 ? options.buffer_bytes : default_buffer_bytes()),
      read_kernels_({{"prefetch to L3", read<1>}, {"prefetch to L2", read<2>}, {"plain", read<kNoPrefetch>}}),
      int8_kernels_(int8_peak_kernels()),
      f32_kernels_(f32_peak_kernels()),
      bf16_kernels_(bf16_peak_kernels()) {
  CHECK(buffer_.size() >= kLine && seconds_ > 0);
  // Pages that nobody wrote are one page of zeros, and that is always in a cache.
  pool_.parallel_for(buffer_.size(), kReadGrain, [&](size_t begin, size_t end) {
    std::memset(buffer_.data() + begin, int(begin / kReadGrain % 255) + 1, end - begin);
  });
  // Numbers that keep the multipliers busy, and sums finite.
  for (size_t i = 0; i < PeakPanels::kBytes; ++i) {
    int8_panels_.left[i] = std::byte(i * 37 % 251);
    int8_panels_.right[i] = std::byte(i * 101 % 241);
  }
  auto* left = reinterpret_cast<float*>(f32_panels_.left);
  auto* right = reinterpret_cast<float*>(f32_panels_.right);
  for (size_t i = 0; i < PeakPanels::kBytes / sizeof(float); ++i) {
    left[i] = float(i * 37 % 251) / 251.0f - 0.5f;
    right[i] = float(i * 101 % 241) / 241.0f - 0.5f;
  }
  auto* left_bf16 = reinterpret_cast<uint16_t*>(bf16_panels_.left);
  auto* right_bf16 = reinterpret_cast<uint16_t*>(bf16_panels_.right);
  for (size_t i = 0; i < PeakPanels::kBytes / sizeof(uint16_t); ++i) {
    left_bf16[i] = f32_to_bf16(float(i * 37 % 251) / 251.0f - 0.5f);
    right_bf16[i] = f32_to_bf16(float(i * 101 % 241) / 241.0f - 0.5f);
  }
}

MachineRates CpuYardstick::measure() {
  MachineRates rates;
  rates.read_gb_s = best_rate(
      read_kernels_, [&](const ReadKernel& kernel, double seconds) { return read_rate(kernel, seconds); });
  rates.int8_gops = best_rate(int8_kernels_, [&](const PeakKernel& kernel, double seconds) {
    return compute_rate(kernel, int8_panels_, seconds);
  });
  rates.f32_gflops = best_rate(f32_kernels_, [&](const PeakKernel& kernel, double seconds) {
    return compute_rate(kernel, f32_panels_, seconds);
  });
  rates.read_method = read_kernels_.front().method;
  rates.int8_instruction = int8_kernels_.front().instruction;
  rates.f32_instruction = f32_kernels_.front().instruction;
  rates.bf16_gflops = rates.f32_gflops;
  rates.bf16_instruction = rates.f32_instruction;
  if (!bf16_kernels_.empty()) {
    rates.bf16_gflops = best_rate(bf16_kernels_, [&](const PeakKernel& kernel, double seconds) {
      return compute_rate(kernel, bf16_panels_, seconds);
    });
    rates.bf16_instruction = bf16_kernels_.front().instruction;
  }
  return rates;
}

template <class Kernel, class Sample>
double CpuYardstick::best_rate(std::vector<Kernel>& candidates, const Sample& sample) const {
  size_t best_candidate = 0;
  double best = 0;
  for (size_t i = 0; i < kSamples; ++i) {
    const double rate = sample(candidates[i % candidates.size()], seconds_ / kSamples);
    if (rate <= best) continue;
    best = rate;
    best_candidate = i % candidates.size();
  }
  candidates = {candidates[best_candidate]};
  return best;
}

double CpuYardstick::read_rate(const ReadKernel& kernel, double seconds) {
  const auto start = Clock::now();
  double passes = 0;
  double passed = 0;
  do {
    pool_.parallel_for(buffer_.size(), kReadGrain, [&](size_t begin, size_t end) {
      sink.fetch_xor(kernel.read(buffer_.data() + begin, end - begin), std::memory_order_relaxed);
    });
    passes += 1;
    passed = milliseconds_between(start, Clock::now()) / 1e3;
  } while (passed < seconds);
  return passes * double(buffer_.size()) / passed / 1e9;
}

double CpuYardstick::compute_rate(const PeakKernel& kernel, const PeakPanels& panels, double seconds) {
  const size_t tasks = pool_.size() * kTasksPerThread;
  const auto round = [&](size_t sweeps) {
    const auto start = Clock::now();
    pool_.parallel_for(tasks, 1, [&](size_t begin, size_t end) {
      for (size_t task = begin; task < end; ++task) {
        sink.fetch_xor(uint64_t(std::fabs(kernel.run(panels, sweeps))), std::memory_order_relaxed);
      }
    });
    return milliseconds_between(start, Clock::now()) / 1e3;
  };
  size_t sweeps = 1;
  while (round(sweeps) < std::min(kRoundSeconds, seconds)) sweeps *= 2;
  double rounds = 0;
  double passed = 0;
  for (; passed < seconds; rounds += 1) passed += round(sweeps);
  return rounds * double(tasks * sweeps) * kernel.ops_per_sweep / passed / 1e9;
}

}  // namespace quire
