#include "model/blocks/expert_mlp.h"

#include <algorithm>

namespace quire {
namespace {

class ExpertMlpBlock : public Block {
 public:
  ExpertMlpBlock(const ExpertMlpSpec& spec, uint32_t dim) : spec_(spec), dim_(dim) {}

  std::vector<Role> roles() const override;
  std::vector<size_t> scratch() const override { return {spec_.used, spec_.used}; }
  void forward(const BlockStep& step) const override;

 private:
  enum : size_t {  // roles
    kRouter,
    kGate,
    kUp,
    kDown,
    kRouterBias,
    kGateBias,
    kUpBias,
    kDownBias,
    kChoiceBias
  };
  enum : uint8_t { kChosenRows, kShareRows };  // scratch

  ExpertMlpSpec spec_;
  uint64_t dim_;
};

std::vector<Role> ExpertMlpBlock::roles() const {
  const uint64_t count = spec_.count;
  const uint64_t width = spec_.width;
  const auto stack = [&](const char* name, const char* tensor, uint64_t rows, uint64_t cols) -> Role {
    return {.name = name, .tensor = tensor, .shape = {count, rows, cols}, .used = spec_.used};
  };
  const auto biases = [&](const char* name, const char* tensor, uint64_t values) -> Role {
    return {.name = name,
            .tensor = tensor,
            .shape = {count, values},
            .kind = RoleKind::vector,
            .presence = Presence::optional};
  };
  std::vector<Role> roles = {{.name = "router", .tensor = "ffn_gate_inp.weight", .shape = {count, dim_}},
                             stack("gate of experts", "ffn_gate_exps.weight", width, dim_),
                             stack("up of experts", "ffn_up_exps.weight", width, dim_),
                             stack("down of experts", "ffn_down_exps.weight", dim_, width),
                             vector_role("router bias", "ffn_gate_inp.bias", count),
                             biases("gate biases", "ffn_gate_exps.bias", width),
                             biases("up biases", "ffn_up_exps.bias", width),
                             biases("down biases", "ffn_down_exps.bias", dim_),
                             vector_role("choice bias", "exp_probs_b.bias", count)};
  roles[kGate].meets_next = true;
  roles[kDown].reads = Role::kInside;
  return roles;
}

void ExpertMlpBlock::forward(const BlockStep& step) const {
  const auto& w = step.weights;
  const size_t choices = step.in.f32.rows * spec_.used;
  const std::span chosen(reinterpret_cast<uint32_t*>(step.scratch[kChosenRows].f32.data), choices);
  const std::span shares(step.scratch[kShareRows].f32.data, choices);
  step.backend.route_experts({.in = step.in,
                              .router = w[kRouter],
                              .bias = w[kRouterBias],
                              .choice_bias = w[kChoiceBias],
                              .routing = spec_.routing,
                              .used = spec_.used,
                              .experts = chosen,
                              .shares = shares});
  step.backend.project_experts({.in = step.in,
                                .experts = chosen,
                                .shares = shares,
                                .share_use = spec_.share_use,
                                .used = spec_.used,
                                .expert_width = spec_.width,
                                .gate = w[kGate],
                                .up = w[kUp],
                                .down = w[kDown],
                                .gate_bias = w[kGateBias],
                                .up_bias = w[kUpBias],
                                .down_bias = w[kDownBias],
                                .function = spec_.gate,
                                .out = step.out});
}

}  // namespace

BlockPtr make_block(const ExpertMlpSpec& spec, uint32_t dim) {
  return std::make_shared<ExpertMlpBlock>(spec, dim);
}

}  // namespace quire
