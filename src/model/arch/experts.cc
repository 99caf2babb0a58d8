#include <fmt/format.h>

#include "base/error.h"
#include "model/arch/arch.h"

namespace quire::arch {
namespace {

RouterScore read_score(const Keys& keys, RouterScore usual) {
  const std::string key = keys("expert_gating_func");
  const std::optional<uint64_t> number = keys.all().maybe_number(key);
  if (!number || *number == 0) return usual;
  constexpr RouterScore kScores[] = {RouterScore::softmax, RouterScore::sigmoid,
                                     RouterScore::softmax_of_chosen, RouterScore::sqrt_softplus};
  if (*number > std::size(kScores))
    throw Error(
        "{}: {} is {}; known are 1 (softmax), 2 (sigmoid), 3 (softmax of the chosen) and 4 (square root of "
        "softplus)",
        keys.all().file_name(), key, *number);
  return kScores[*number - 1];
}

void read_groups(const Keys& keys, const ExpertMlpSpec& experts, Routing& routing) {
  const uint64_t groups = keys.all().maybe_number(keys("expert_group_count")).value_or(routing.groups);
  if (groups <= 1) return;  // 0 is none, too
  routing.groups = keys.count("expert_group_count");
  routing.groups_used = keys.count("expert_group_used_count");
  const uint64_t size = experts.count / routing.groups;
  if (experts.count % routing.groups != 0)
    throw Error("{}: {} experts do not divide into {} of {}", keys.all().file_name(), experts.count,
                keys("expert_group_count"), routing.groups);
  if (routing.groups_used > routing.groups || routing.groups_used * size < experts.used)
    throw Error("{}: {} is {}, and {} experts cannot be chosen from so many of {} groups of {}",
                keys.all().file_name(), keys("expert_group_used_count"), routing.groups_used, experts.used,
                routing.groups, size);
}

}  // namespace

void read_routing(const ModelFile& file, ModelSpec& spec, const Routing& usual) {
  const Keys keys(file);
  for (LayerSpec& layer : spec.layers) {
    auto* experts = std::get_if<ExpertMlpSpec>(&layer.mlp);
    if (experts == nullptr) continue;
    Routing routing = usual;
    routing.score = read_score(keys, usual.score);
    routing.normalized = keys.all().maybe_flag(keys("expert_weights_norm")).value_or(usual.normalized);
    const float scale = keys.real("expert_weights_scale", usual.scale);
    routing.scale = scale == 0 ? 1 : scale;  // how files say that there is none
    if (!(routing.scale > 0 && routing.scale < 1e6f))
      throw Error("{}: {} is {}", keys.all().file_name(), keys("expert_weights_scale"), scale);
    read_groups(keys, *experts, routing);
    experts->routing = routing;
  }
}

void read_shared_experts(const ModelFile& file, ModelSpec& spec, OutputGate gate) {
  const Keys keys(file);
  const uint64_t count = keys.all().maybe_number(keys("expert_shared_count")).value_or(0);
  if (count > 64) throw Error("{}: {} is {}", keys.all().file_name(), keys("expert_shared_count"), count);
  const uint64_t said = keys.all().maybe_number(keys("expert_shared_feed_forward_length")).value_or(0);
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    LayerSpec& layer = spec.layers[i];
    const auto* experts = std::get_if<ExpertMlpSpec>(&layer.mlp);
    if (experts == nullptr) continue;
    uint32_t width =
        said != 0 ? keys.count("expert_shared_feed_forward_length") : uint32_t(count) * experts->width;
    // Some files have them and say nothing.
    const TensorEntry* up = file.find(fmt::format("blk.{}.ffn_up_shexp.weight", i));
    if (width == 0 && up != nullptr && up->shape.size() == 2) width = uint32_t(up->shape[0]);
    if (width == 0) continue;
    layer.shared = DenseMlpSpec{.width = width,
                                .gate = experts->gate,
                                .suffix = "_shexp",
                                .gated_output = gate == OutputGate::sigmoid};
  }
}

}  // namespace quire::arch
