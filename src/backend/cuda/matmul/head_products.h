#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/backend.h"
#include "backend/cuda/matmul/experts.h"

// A matrix for each head on the device: what ProjectHeadsParams of backend/backend.h asks for. Heads are experts that every token
// has, so their kernels multiply them; whose tokens are where is known beforehand, and nothing is sorted. A token's result has the
// bits of products.h, whatever tokens are beside it.

namespace quire::cuda {

struct DeviceHeads {
  Rows in;  // [tokens, heads * (cols + rest)]
  uint32_t heads = 0;
  ExpertStack weights;  // of each head [rows, cols]
  Rows out;             // [tokens, heads * (rest + rows)], elsewhere

  uint32_t tokens() const { return uint32_t(in.rows); }
};

// Device memory for a call, aligned to 256. Pairs of a head and a token, head by head, are slots; an item is some tokens of a head.
struct HeadRoom {
  uint8_t* gathered;  // activations of every item
  ExpertItem* items;
  uint32_t* item_count;
};
size_t head_room_bytes(uint32_t tokens, uint32_t heads, const WeightShape& shape);
HeadRoom head_room(uint8_t* memory, uint32_t tokens, uint32_t heads, const WeightShape& shape);

// Starts it. What products.h says of the order of kernels holds here too, but that no weight is read before the kernel before has
// ended.
void project_heads(const DeviceHeads& params, uint8_t* memory, const DeviceTraits& device,
                   cudaStream_t stream);

// The same with a plan of the caller's choice. REQUIRES: a device that can.
void project_heads_by(const ExpertPlan& plan, const DeviceHeads& params, uint8_t* memory,
                      const DeviceTraits& device, cudaStream_t stream);

// The first of its kernels: the items, their activations, and what is left of each head in its place.
void gather_heads(const DeviceHeads& params, uint32_t item_tokens, const HeadRoom& room,
                  const DeviceTraits& device, cudaStream_t stream);

}  // namespace quire::cuda
