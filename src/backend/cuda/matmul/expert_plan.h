#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cuda/matmul/product_plan.h"

// How a step's tokens are dealt to the experts of a mixture: pure functions of what the host knows, which are the
// numbers of tokens and experts but not who chose whom. Nothing here shows in a result's bits.

namespace quire::cuda {

// A pair is a token with one of its experts; pairs sorted by expert stand in slots. An item is a run of slots of one
// expert, at most ExpertPlan::item_tokens: what one kernel multiplies at a time.
struct ExpertItem {
  uint32_t expert;
  uint32_t first;  // slot
  uint32_t count;
  uint32_t unused;  // makes it one load
};

struct ExpertPlan {
  ProductKernel kernel;
  uint32_t item_tokens;
};

struct ExpertCounts {
  uint32_t tokens;
  uint32_t used;  // experts of a token
  uint32_t experts;

  constexpr uint32_t pairs() const { return tokens * used; }
};

// The sorting kernel counts experts in shared memory.
inline constexpr uint32_t kMostSortedExperts = 1024;

inline constexpr uint32_t kPlainItemTokens = 32;

// The two weights of an expert.
struct ExpertShapes {
  WeightShape gate_up;
  WeightShape down;
};

// Of heads that every token has, each with a weight of this shape.
ExpertPlan plan_heads(const DeviceTraits& device, uint32_t tokens, const WeightShape& shape);

ExpertPlan plan_experts(const DeviceTraits& device, const ExpertCounts& counts, const ExpertShapes& shapes);

// How a block of the stream kernel shares its memory: activations of an item, which all its warps read; rings of weights
// for each warp; sums of the warps' slices.
struct ExpertStreamPlan {
  uint32_t chunk_units;
  uint32_t stages;  // 0: the activations leave no room
  uint32_t stage_bytes;
  uint32_t sum_buffers;
  uint32_t activation_bytes;
  uint32_t shared_bytes;
};

constexpr uint32_t expert_stream_warps(WeightFormat format, uint32_t token_tiles) {
  return token_tiles == 1 && format != WeightFormat::bf16 ? 16 : 8;
}

ExpertStreamPlan plan_expert_stream(const WeightShape& shape, uint32_t item_tokens);

// No routing makes more items of at most `item_tokens` pairs.
constexpr uint32_t most_items(const ExpertCounts& counts, uint32_t item_tokens) {
  const uint32_t some = counts.experts < counts.pairs() ? counts.experts : counts.pairs();
  return some + counts.pairs() / item_tokens;
}

}  // namespace quire::cuda
