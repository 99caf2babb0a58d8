#pragma once

#include <cstdint>

#include "backend/backend.h"
#include "kv/kv_layout.h"
#include "model/model_spec.h"
#include "model/weights.h"

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

// Counts steps of one model on one backend. All three must outlive it.
class CostModel {
 public:
  CostModel(const ModelSpec& spec, const Weights& weights, const Backend& backend);

  // `layout` says how many bytes a cached row has.
  StepCost step(const StepShape& shape, const KvLayout& layout) const;
  // Its two parts: the weights' matrices, which read no cache, and attention, which reads nothing else.
  StepCost products(const StepShape& shape) const;
  StepCost attention(const StepShape& shape, const KvLayout& layout) const;

 private:
  // Adds a product that `rows` rows of activations take part in.
  void add_product(StepCost& cost, const Weight& weight, double rows) const;
  void add_experts(StepCost& cost, const LayerWeights& layer, double rows) const;
  void add_attention(StepCost& cost, const KvLayerLayout& layer, const StepShape& shape) const;
  void add_ops(StepCost& cost, DType weight, double ops) const;

  const ModelSpec& spec_;
  const Weights& weights_;
  const Backend& backend_;
};

}  // namespace quire
