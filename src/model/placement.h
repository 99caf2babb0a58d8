#pragma once

#include <cstdint>
#include <string>

#include "model/model_spec.h"

namespace quire {

// Which blocks of a model are computed beside the device, by the host. The last layers are the device's and so is the head: then
// the stream crosses once, and nobody waits for it in the middle of a step.
struct Placement {
  static constexpr uint32_t kAll = UINT32_MAX;
  uint32_t device_layers = kAll;  // the last so many
  uint32_t host_experts = 0;      // and of those the experts of the last so many that have any are the host's

  bool operator==(const Placement&) const = default;
};

// The states of recurrent layers are one page, which is on one side.
bool can_be_divided(const ModelSpec& spec);
// Says so in the spec. REQUIRES: it can be divided, if it is to be. A layer that reads another's keys and values is where those are.
void place(ModelSpec& spec, const Placement& placement);

bool is_split(const ModelSpec& spec);
// How many layers have experts.
uint32_t expert_layers(const ModelSpec& spec);
// How often the stream crosses in a step.
uint32_t crossings(const ModelSpec& spec);
// What it adds to the name of the kernels that compute a model; empty if it is not split. Two that place alike have the same.
std::string placement_mark(const ModelSpec& spec);

}  // namespace quire
