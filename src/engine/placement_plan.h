#pragma once

#include <optional>
#include <string>

#include "engine/memory_plan.h"
#include "model/placement.h"

namespace quire {

// What a user says of the placement; what he does not say is decided by what fits.
struct PlacementWish {
  std::optional<uint32_t> device_layers, host_experts;

  bool any() const { return device_layers || host_experts; }
};

// How fast one token goes through the two sides.
struct SideRates {
  double device_bytes_per_s = 0, host_bytes_per_s = 0;  // that weights are read with
  double crossing_s = 0;                                // of one token's residual stream
};

// Products of one token, and all between them, take as long as plain reads would at this share of their pace: a half to four
// fifths of it were seen.
inline constexpr double kShareReached = 0.6;

// A placement, and what follows from it.
struct PlacementPlan {
  Placement placement;
  MemoryPlan device, host;
  double device_bytes = 0, host_bytes = 0;  // of weights that one token reads
  uint32_t crossings = 0;

  double seconds_per_token(const SideRates& rates) const;
};

// What is asked: all of it must stay while it is answered.
struct PlacementCase {
  const ModelFile& file;
  const ModelSpec& spec;  // as the file has it: nothing is placed
  const EngineOptions& options;
  const Backend& backend;  // with both sides
};

PlacementPlan plan_placement(const PlacementCase& asked, const Placement& placement);

struct PlacementRoom {
  size_t device = 0, host = 0;  // bytes
};
// Of all placements that the wish allows and that fit, the one with which a token takes the least time; nothing: none fits.
// Experts go to the host before layers do, and are tried alone: they are read in parts.
std::optional<PlacementPlan> best_placement(const PlacementCase& asked, const PlacementWish& wish,
                                            const PlacementRoom& room, const SideRates& rates);

// Measures both sides, for some tenths of a second each, and the way between them.
SideRates measure_sides(Backend& backend, uint32_t dim);

}  // namespace quire
