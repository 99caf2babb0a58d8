#pragma once

#include <cstddef>
#include <string>

namespace quire {

// What a machine can do, and what it did it with.
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
  double seconds = 2;       // that each rate is measured for
  size_t buffer_bytes = 0;  // what is read; 0: several times what the caches hold
};

// Measures the limits that speed is stated as a share of.
class Yardstick {
 public:
  virtual ~Yardstick() = default;
  virtual MachineRates measure() = 0;
};

}  // namespace quire
