#pragma once

#include <string>
#include <vector>

#include "backend/yardstick.h"
#include "base/json.h"
#include "cli/bench_phases.h"

namespace quire::cli {

// A phase beside the limits of the machine that were measured around it.
struct BenchResult {
  PhaseShape shape;
  PhaseRun run;
  MachineRates limits;
  double change = 0;  // of the yardsticks while it ran

  bool steady() const;
  double tokens_per_second() const { return run.tokens / run.seconds; }
  // What a million tokens cost at so much an hour.
  double cost_of_million(double cost_per_hour) const {
    return cost_per_hour / 3600 / tokens_per_second() * 1e6;
  }
  double gops() const { return run.cost.ops() / run.seconds / 1e9; }
  // Of the time it took, what its operations, or its bytes, need at the machine's rates. Weights that stay in the CPU's
  // caches can put the second above 1.
  double compute_share() const;
  double memory_share() const;
  // What bounds it: for one sequence's decode the reading of memory, else what needs more time at the machine's rates.
  bool memory_bound() const;
  double share() const;
};

// A yardstick that moved by more than this makes a run unsteady.
inline constexpr double kSteadyChange = 0.1;

struct BenchReport {
  std::string model;  // the file's name
  size_t weight_bytes = 0;
  size_t packed_bytes = 0;  // of them as the kernels keep them in memory
  std::string kernels;
  std::string kv_format;
  size_t kv_bytes_per_token = 0;
  std::string device;        // "2 threads", "NVIDIA H200"
  uint32_t threads = 0;      // 0: it is no CPU
  double cost_per_hour = 0;  // of the machine, in whatever money; 0: nobody asks
  MachineRates machine;      // the best that was seen
  std::vector<BenchResult> results;

  std::string text() const;
  OrderedJson json() const;
  std::string svg() const;  // a roofline
};

}  // namespace quire::cli
