#include "engine/placement_plan.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "model/layer_blocks.h"

namespace quire {
namespace {

constexpr int kCrossingRounds = 20;
constexpr YardstickOptions kShortLook{.seconds = 0.05};

// Of a role's matrices, those that one token reads.
double read_bytes(const ModelFile& file, const Role& role) {
  if (role.kind != RoleKind::product || role.presence == Presence::absent) return 0;
  const bool part = is_part(role, file);
  const TensorEntry* tensor = file.find(part ? role.part.tensor : role.tensor);
  if (tensor == nullptr) return 0;
  return double(tensor->bytes) * (part ? role.part_share() : 1) * role.used / double(role.stacked());
}

std::vector<Placement> candidates(const ModelSpec& spec, const PlacementWish& wish) {
  const auto layers = uint32_t(spec.layers.size());
  const uint32_t experts = expert_layers(spec), least = wish.host_experts.value_or(0);
  const uint32_t most_layers = std::min(wish.device_layers.value_or(layers), layers);
  std::vector<Placement> list;
  for (uint32_t e = least; e <= (wish.host_experts ? least : experts); ++e)
    list.push_back({.device_layers = most_layers, .host_experts = e});
  if (wish.device_layers) return list;
  const uint32_t with_experts = wish.host_experts.value_or(experts);
  for (uint32_t n = most_layers; n-- > 0;) list.push_back({.device_layers = n, .host_experts = with_experts});
  return list;
}

double seconds(double bytes, double bytes_per_s) {
  return bytes_per_s > 0 ? bytes / bytes_per_s : 0;
}

double read_rate(const Backend& backend) {
  const std::unique_ptr<Yardstick> yardstick = backend.make_yardstick(kShortLook);
  return yardstick == nullptr ? 0 : 1e9 * yardstick->measure().read_gb_s;
}

}  // namespace

double PlacementPlan::seconds_per_token(const SideRates& rates) const {
  const double reading =
      seconds(device_bytes, rates.device_bytes_per_s) + seconds(host_bytes, rates.host_bytes_per_s);
  return reading / kShareReached + crossings * rates.crossing_s;
}

PlacementPlan plan_placement(const PlacementCase& asked, const Placement& placement) {
  ModelSpec spec = asked.spec;
  place(spec, placement);
  PlacementPlan plan{.placement = placement,
                     .device = plan_memory(asked.file, spec, asked.options, asked.backend, Side::device),
                     .host = plan_memory(asked.file, spec, asked.options, asked.backend, Side::host),
                     .crossings = crossings(spec)};
  for (const LayerBlock& block : layer_blocks(spec)) {
    double& bytes = block.side == Side::host ? plan.host_bytes : plan.device_bytes;
    for (const Role& role : block.roles()) bytes += read_bytes(asked.file, role);
  }
  const ModelRoles roles = model_roles(spec);
  const TensorEntry* head = asked.file.find(roles.head.tensor);
  if (head == nullptr) head = asked.file.find(roles.embedding.tensor);
  if (head != nullptr) plan.device_bytes += double(head->bytes);
  return plan;
}

std::optional<PlacementPlan> best_placement(const PlacementCase& asked, const PlacementWish& wish,
                                            const PlacementRoom& room, const SideRates& rates) {
  std::optional<PlacementPlan> best;
  for (const Placement& placement : candidates(asked.spec, wish)) {
    const PlacementPlan plan = plan_placement(asked, placement);
    if (plan.device.total() > room.device || plan.host.total() > room.host) continue;
    if (!best || plan.seconds_per_token(rates) < best->seconds_per_token(rates)) best = plan;
  }
  return best;
}

SideRates measure_sides(Backend& backend, uint32_t dim) {
  Backend& device = backend.side(Side::device);
  SideRates rates{.device_bytes_per_s = read_rate(device),
                  .host_bytes_per_s = read_rate(backend.side(Side::host))};
  const size_t bytes = dim * sizeof(float);
  const Buffer there = device.allocate(bytes), here = device.allocate_host(bytes);
  device.wait(device.mark());
  std::vector<double> rounds;
  for (int i = 0; i < kCrossingRounds; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    device.copy(there.data(), here.data(), bytes);
    device.copy(here.data(), there.data(), bytes);
    device.wait(device.mark());
    rounds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  std::ranges::nth_element(rounds, rounds.begin() + kCrossingRounds / 2);
  rates.crossing_s = rounds[kCrossingRounds / 2] / 2;
  return rates;
}

}  // namespace quire
