#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "backend/yardstick.h"
#include "cli/bench_phases.h"
#include "model/cost.h"

namespace quire::cli {

// What takes most of a step's time.
enum class Bound : uint8_t { reading_weights, computing_products, reading_kv, computing_attention };
std::string_view name(Bound bound);

// Of the machine's limits, what this program reaches with one model and one KV format: measured once at one size. Above 1
// where what is read stays in the CPU's caches.
struct ReachedShares {
  double reading_weights = 1;    // in decode
  double prefill_products = 1;   // of the peak of computing
  double decode_products = 1;    // of that peak, one row for each sequence
  double prefill_attention = 1;  // of what bounds it
  double decode_attention = 1;
};

// A run at two depths: what does not change between them is the products', the rest is attention's.
struct TwoDepths {
  double shallow_seconds = 0, deep_seconds = 0;
  double products = 0;                               // seconds at the machine's limits, at both depths
  double shallow_attention = 0, deep_attention = 0;  // too
};
struct PartShares {
  double products = 1, attention = 1;
};
// Never below a thousandth nor so high that a part would take no time, however much the measurement was disturbed.
PartShares shares_of(const TwoDepths& measured);

// Predicts phases from the roofline: each part of a step takes what its operations or its bytes, whichever need longer,
// take at the machine's limits, divided by the share of the limit that is reached.
class Forecast {
 public:
  Forecast(const CostModel& costs, const KvLayout& layout, const MachineRates& machine,
           const ReachedShares& shares)
      : costs_(costs), layout_(layout), machine_(machine), shares_(shares) {}

  struct Time {
    double seconds = 0;
    Bound bound = Bound::reading_weights;
  };
  // Until the first token of a prompt that is alone, computed in chunks. REQUIRES: chunk > 0.
  Time first_token(uint32_t prompt, uint32_t chunk) const;
  // Of one step of `batch` sequences that have `depth` tokens each.
  Time next_token(uint32_t depth, uint32_t batch) const;

 private:
  struct Parts {
    double seconds[4] = {};  // by Bound
    Time time() const;
  };
  void add(Parts& parts, const StepShape& shape) const;

  const CostModel& costs_;
  const KvLayout& layout_;
  MachineRates machine_;
  ReachedShares shares_;
};

// Seconds that a cost needs at the machine's limits.
double reading_seconds(const StepCost& cost, const MachineRates& machine);
double computing_seconds(const StepCost& cost, const MachineRates& machine);

// What is measured: a model in one KV format, and the batch of the decode that will be predicted.
struct Subject {
  std::function<PhaseRun(const PhaseShape&)> run;
  const KvLayout* layout = nullptr;
  uint32_t batch = 1;
};
// Measures for about `seconds`, the subjects turn by turn: what disturbs the machine for a while disturbs all alike. They
// have the same matrices, so that the shares of these are the first one's. `context`: the depths stay within it.
std::vector<ReachedShares> calibrate(std::span<const Subject> subjects, const CostModel& costs,
                                     const MachineRates& machine, uint32_t context, double seconds);

}  // namespace quire::cli
