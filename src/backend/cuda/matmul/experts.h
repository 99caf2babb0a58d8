#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "backend/backend.h"
#include "backend/cuda/matmul/expert_plan.h"
#include "backend/cuda/matmul/products.h"

// The experts of a mixture on the device: what ProjectExpertsParams of backend/backend.h asks for. Which tokens chose an
// expert is known to the device alone; kernels sort them, and products of all experts run as one kernel. A token's
// result has the same bits whatever tokens are beside it: each product has those of products.h, and a token adds its
// experts in the order of its list.

namespace quire::cuda {

// Packed weights of one shape, one for each expert, one after the other in memory that someone else owns.
struct ExpertStack {
  WeightShape shape;  // of one
  uint32_t experts = 0;
  const uint8_t* data = nullptr;
  CUtensorMap map = {};  // of the blocks of all, for Hopper's copies

  size_t bytes() const { return shape.bytes() * experts; }
};

// Writes a stack to `destination`, aligned to 256. Every source has the rows of all experts, as many of each; an expert's
// weight has its rows of all sources one after the other, or those of them that `order` names. Waits for it.
ExpertStack pack_experts(std::span<const MatrixView> sources, uint32_t experts, const RowOrder& order,
                         const PackStaging& staging, uint8_t* destination, cudaStream_t stream);

// The shape that pack_experts gives each expert.
WeightShape expert_shape(std::span<const MatrixView> sources, uint32_t experts, const RowOrder& order);

// The stack that was packed there before.
ExpertStack experts_at(const WeightShape& shape, uint32_t experts, const uint8_t* data);

// What the experts of one stream share. Large enough up to the limits it was made for.
class ExpertWorkspace {
 public:
  struct Limits {
    ExpertCounts counts;
    uint32_t dim;    // of the model
    uint32_t width;  // of an expert's hidden layer
  };
  explicit ExpertWorkspace(const Limits& limits);

  static size_t bytes(const Limits& limits);  // of device memory

  const Limits& limits() const { return limits_; }
  const DeviceTraits& device() const { return device_; }
  uint32_t* item_count() const { return item_count_.as<uint32_t>(); }
  ExpertItem* items() const { return items_.as<ExpertItem>(); }
  uint32_t* slots() const { return slots_.as<uint32_t>(); }
  uint32_t* pairs() const { return pairs_.as<uint32_t>(); }
  uint8_t* gathered() const { return gathered_.as<uint8_t>(); }
  uint8_t* hidden() const { return hidden_.as<uint8_t>(); }
  float* rows() const { return rows_.as<float>(); }

 private:
  Limits limits_;
  DeviceTraits device_;
  DeviceBuffer item_count_;
  DeviceBuffer items_;     // [most items]
  DeviceBuffer slots_;     // [pairs]: the slot of a pair
  DeviceBuffer pairs_;     // [pairs, 2]: the pair of a slot and its item
  DeviceBuffer gathered_;  // activations of every item: [items][dim / 64][count][64]
  DeviceBuffer hidden_;    // the same of the hidden layer
  DeviceBuffer rows_;      // [slots, dim]
};

struct DeviceExperts {
  ActivationBlock in;                 // [tokens, dim]
  const uint32_t* experts = nullptr;  // [tokens, used], different ones of a token
  const float* shares = nullptr;      // [tokens, used]
  uint32_t used = 0;
  ExpertStack gate_up;               // rows alternate: gate, up, gate, ... [2 width, dim]; or ups alone
  ExpertStack down;                  // [dim, width]
  const float* gate_bias = nullptr;  // [experts, width], or none
  const float* up_bias = nullptr;
  const float* down_bias = nullptr;  // [experts, dim], or none
  Gate function = {};
  float* plain = nullptr;  // of ups alone: memory for [tokens * used, width]
  Rows out;                // [tokens, dim]
};

// Starts out = the sum of share * (down(function(gate(in)) * up(in)) + down_bias), or of function(up(in)) where there are no gates. What products.h says of the order of
// kernels holds here too, but that no weight is read before the kernel before has ended.
void project_experts(const DeviceExperts& params, const ExpertWorkspace& workspace, cudaStream_t stream);

// The same with a plan of the caller's choice. REQUIRES: a device that can.
void project_experts_by(const ExpertPlan& plan, const DeviceExperts& params, const ExpertWorkspace& workspace,
                        cudaStream_t stream);

}  // namespace quire::cuda
