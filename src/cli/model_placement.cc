// What of a model a GPU computes, and what the CPU beside it.
#include <algorithm>
#include <charconv>

#include <fmt/format.h>

#include "base/error.h"
#include "base/memory.h"
#include "cli/model_options.h"
#include "cli/tell.h"
#include "engine/placement_plan.h"

namespace quire::cli {
namespace {

constexpr uint32_t kLeastContext = 4096;  // that a placement makes room for if no context was asked for
constexpr double kSpared = 0.94;          // of a GPU's memory, as for pages
constexpr double kHostSpared = 0.9;       // of the host's, which is mostly the file's own pages

uint32_t number_of(const char* option, const std::string& text) {
  uint32_t number = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (problem != std::errc() || end != text.data() + text.size())
    wrong_usage("{} wants a number of layers, not '{}'", option, text);
  return number;
}

PlacementWish wish_of(const ModelOptions& options, const ModelSpec& spec) {
  PlacementWish wish;
  if (options.gpu_layers != "auto") wish.device_layers = number_of("--gpu-layers", options.gpu_layers);
  if (options.cpu_experts.empty()) return wish;
  const uint32_t layers = expert_layers(spec);
  if (layers == 0) throw Error("--cpu-experts: no layer of this model has experts");
  wish.host_experts = options.cpu_experts == "all"
                          ? layers
                          : std::min(layers, number_of("--cpu-experts", options.cpu_experts));
  return wish;
}

std::string told(const PlacementPlan& plan, const ModelSpec& spec, const SideRates& rates) {
  const size_t layers = spec.layers.size(), kept = std::min<size_t>(plan.placement.device_layers, layers);
  std::string who;
  if (kept < layers) who = fmt::format("the first {} of {} layers", layers - kept, layers);
  if (plan.placement.host_experts > 0)
    who += fmt::format("{}the experts of {}", who.empty() ? "" : " and ",
                       counted(plan.placement.host_experts, "layer"));
  return fmt::format(
      "the CPU computes {}: about {:.1f} tokens/s for one answer ({} of weights a token from the GPU at "
      "{:.0f} GB/s, {} from the host's memory at {:.0f} GB/s, of which products reach some {:.0f} %, {} of "
      "{:.0f} us)",
      who, 1 / plan.seconds_per_token(rates), human_bytes(size_t(plan.device_bytes)),
      rates.device_bytes_per_s / 1e9, human_bytes(size_t(plan.host_bytes)), rates.host_bytes_per_s / 1e9,
      100 * kShareReached, counted(plan.crossings, "crossing"), 1e6 * rates.crossing_s);
}

}  // namespace

Placement ModelOptions::place_model(const ModelFile& file, ModelSpec& spec, const EngineOptions& options,
                                    std::unique_ptr<Backend>& backend) const {
  const PlacementWish wish = wish_of(*this, spec);
  if (backend->traits().memory == MemoryKind::host) {
    if (wish.any())
      wrong_usage("--gpu-layers and --cpu-experts divide a model between a GPU and the CPU; the device is {}",
                  backend->traits().device);
    return {};
  }
  if (!can_be_divided(spec)) {
    if (wish.any())
      throw Error(
          "--gpu-layers and --cpu-experts: a model with recurrent layers is not divided between a GPU and "
          "the CPU "
          "yet; use --device cpu");
    return {};
  }
  EngineOptions least = options;
  if (!context) least.context = std::min(least.context, kLeastContext);
  const size_t there = memory.empty() ? backend->available_memory() : parse_size(memory);
  const PlacementRoom room{.device = memory.empty() ? size_t(kSpared * double(there)) : there,
                           .host = size_t(kHostSpared * double(available_memory()))};
  const MemoryPlan whole = plan_memory(file, spec, least, *backend);
  if (!wish.any() && whole.total() <= room.device) return {};

  backend = nullptr;  // its memory is wanted
  backend = open_split_backend(choice());
  const SideRates rates = measure_sides(*backend, spec.dim);
  const auto best = best_placement({file, spec, least, *backend}, wish, room, rates);
  if (!best) {
    throw Error(
        "the model takes {} of weights, {} of KV cache for {} tokens and {} of scratch; the GPU has {} for "
        "it, "
        "the host {}, and no way to divide it between them fits{}; {}",
        human_bytes(whole.weights), human_bytes(whole.kv), least.context, human_bytes(whole.scratch),
        human_bytes(room.device), human_bytes(room.host), wish.any() ? " what was asked for" : "",
        told_free(*backend));
  }
  place(spec, best->placement);
  if (is_split(spec)) {
    if (!wish.any()) tell(told_free(*backend));
    tell(told(*best, spec, rates));
  } else {
    backend = nullptr;
    backend = open_backend(choice());
  }
  return best->placement;
}

}  // namespace quire::cli
