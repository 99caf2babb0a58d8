#pragma once

#include "backend/cuda/matmul/activation_layout.h"
#include "backend/cuda/matmul/experts.h"

// Launchers of the kernels behind project_experts.

namespace quire::cuda {

struct ExpertSorting {
  const uint32_t* experts;  // of pairs
  ExpertCounts counts;
  uint32_t item_tokens;
  uint32_t* item_count;
  ExpertItem* items;
  uint32_t* slots;  // of pairs
  uint2* pairs;     // of slots, and the items that slots are in
};

// Which pair is in which of its expert's slots is left to chance; it shows in no result.
void sort_by_expert(const ExpertSorting& sorting, const DeviceTraits& device, cudaStream_t stream);

// Activations of the items' tokens, each item a block of its own.
void gather_activations(const ExpertSorting& sorting, const ActivationBlock& in, uint8_t* gathered,
                        const DeviceTraits& device, cudaStream_t stream);

// Activations of items from what their first products left: function(rows[slot]), each item a block of its own.
struct ExpertPlain {
  const float* rows;  // [slots, width]
  uint32_t width;
  Gate function;
  uint8_t* next;
};
void activate_items(const ExpertSorting& sorting, const ExpertPlain& plain, const DeviceTraits& device,
                    cudaStream_t stream);

// out[token] = sum over its pairs, in their order, of share * rows[slot]
struct ExpertSum {
  const float* rows;  // [slots, dim]
  const uint32_t* slots;
  const float* shares;
  uint32_t used;
  Rows out;
};
void add_experts(const ExpertSum& sum, const DeviceTraits& device, cudaStream_t stream);

// An item's activations in a buffer of them: every slot takes as much.
constexpr size_t item_activations(uint32_t first_slot, uint32_t cols) {
  return size_t(first_slot) * round_up(cols, kBlockK) * 2;
}

// What becomes of the products of an item. `of` is the output of products for it alone.
struct ExpertHidden {
  Gate function;
  const float* gate_bias;
  const float* up_bias;
  uint8_t* next;
  uint32_t width;

  constexpr GatedUnit of(const ExpertItem& item) const {
    GatedUnit output;
    output.next = {next + item_activations(item.first, width), item.count, width};
    output.function = function;
    output.gate_bias = gate_bias != nullptr ? gate_bias + size_t(item.expert) * width : nullptr;
    output.up_bias = up_bias != nullptr ? up_bias + size_t(item.expert) * width : nullptr;
    return output;
  }
};

struct ExpertRows {
  float* out;  // [slots, rows]
  const float* bias;
  uint32_t rows;
  size_t stride = rows;       // from a slot to the next
  int64_t expert_stride = 0;  // and, beside that, from an expert to the next

  constexpr StoreParts of(const ExpertItem& item) const {
    StoreParts output;
    output.parts[0] = {out + (int64_t(item.first) * int64_t(stride) + int64_t(item.expert) * expert_stride),
                       stride, bias != nullptr ? bias + size_t(item.expert) * rows : nullptr, rows};
    return output;
  }
};

template <class Output>
struct ExpertCall {
  const ExpertStack& stack;
  const uint8_t* activations;  // of items
  const uint32_t* item_count;
  const ExpertItem* items;
  uint32_t most_items;
  uint32_t item_tokens;
  const Output& output;
  const DeviceTraits& device;
  cudaStream_t stream;
};

template <WeightFormat kFormat, class Output>
void launch_experts_plain(const ExpertCall<Output>& call);
template <WeightFormat kFormat, class Output>
void launch_experts_stream(const ExpertCall<Output>& call);
template <WeightFormat kFormat, class Output>
void launch_experts_tile(const ExpertCall<Output>& call);

}  // namespace quire::cuda
