#pragma once

#include <cstdint>

namespace quire {

// One step of equal runs: each of `sequences` computes `tokens` tokens after `depth` cached ones, and the logits of
// `logit_rows` of them.
struct StepShape {
  uint32_t sequences = 1;
  uint32_t tokens = 1;
  uint32_t depth = 0;
  uint32_t logit_rows = 1;
};

// What a step has to do at the least: the products of its matrices and of its attention (a multiply and an add are two
// operations), each weight read once in the form the file has it, each visible row of the KV cache read or written once.
// What is small beside these is left out: norms, rotation, nonlinearities, activations, tables that are read by row.
struct StepCost {
  double int8_ops = 0;  // products with quantized activations
  double bf16_ops = 0;  // products with bf16 activations
  double f32_ops = 0;   // products with f32 activations, and attention
  double weight_bytes = 0;
  double kv_bytes = 0;

  double ops() const { return int8_ops + bf16_ops + f32_ops; }
  double bytes() const { return weight_bytes + kv_bytes; }
  double ops_per_byte() const { return ops() / bytes(); }
  StepCost& operator+=(const StepCost& other);
  StepCost& operator*=(double factor);
};

}  // namespace quire
