#pragma once

#include "model/blocks/block.h"

// What blocks with states have in common.

namespace quire {

inline KvStream state_stream(uint32_t heads, uint64_t values) {
  return {.kv_heads = heads,
          .key_dim = uint32_t(values),
          .key_format = KvFormat::f32,
          .state = true,
          .own_format = true};
}

// The inputs that a convolution over `span` tokens looks back at.
inline KvStream convolution_stream(uint32_t span, uint64_t channels) {
  return state_stream(1, (span - 1) * channels);
}

inline Role convolution_role(std::string tensor, uint64_t channels, uint32_t span) {
  return {.name = "convolution",
          .tensor = std::move(tensor),
          .shape = {channels, span},
          .kind = RoleKind::vector};
}

// States are read and written once in a run.
inline StepCost recurrent_cost(double ops_of_token, const StepShape& shape,
                               std::span<const KvLayerLayout* const> streams) {
  StepCost cost;
  cost.f32_ops = double(shape.sequences) * shape.tokens * ops_of_token;
  for (const KvLayerLayout* stream : streams)
    cost.kv_bytes += 2.0 * shape.sequences * double(stream->head_bytes) * stream->shape.kv_heads;
  return cost;
}

}  // namespace quire
