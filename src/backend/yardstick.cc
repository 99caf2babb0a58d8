#include "backend/yardstick.h"

#include <algorithm>
#include <cmath>

namespace quire {
namespace {

double change(double a, double b) {
  const double larger = std::max(a, b);
  return larger > 0 ? std::fabs(a - b) / larger : 0;
}

}  // namespace

double largest_change(const MachineRates& a, const MachineRates& b) {
  return std::max({change(a.read_gb_s, b.read_gb_s), change(a.int8_gops, b.int8_gops),
                   change(a.f32_gflops, b.f32_gflops), change(a.bf16_gflops, b.bf16_gflops)});
}

MachineRates best_of(const MachineRates& a, const MachineRates& b) {
  MachineRates best = a;
  best.read_gb_s = std::max(a.read_gb_s, b.read_gb_s);
  best.int8_gops = std::max(a.int8_gops, b.int8_gops);
  best.f32_gflops = std::max(a.f32_gflops, b.f32_gflops);
  best.bf16_gflops = std::max(a.bf16_gflops, b.bf16_gflops);
  return best;
}

}  // namespace quire
