#include "model/blocks/expert_mlp.h"

#include <algorithm>

namespace quire {
namespace {

class ExpertMlpBlock : public Block {
 public:
  ExpertMlpBlock(const ExpertMlpSpec& spec, uint32_t dim) : spec_(spec), dim_(dim) {}

  std::vector<Role> roles() const override;
  std::vector<size_t> scratch() const override {
    return {spec_.used, spec_.used, spec_.latent, spec_.latent};
  }
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
    kChoiceBias,
    kLatentIn,
    kLatentOut,
    kShareScales,
    kByToken
  };
  enum : uint8_t { kChosenRows, kShareRows, kLatentRows, kMadeRows };  // scratch

  ExpertMlpSpec spec_;
  uint64_t dim_;
};

std::vector<Role> ExpertMlpBlock::roles() const {
  const uint64_t count = spec_.count;
  const uint64_t width = spec_.width, own = spec_.latent == 0 ? dim_ : spec_.latent;
  const Presence gate = spec_.gated ? Presence::required : Presence::absent;
  const Presence latent = spec_.latent == 0 ? Presence::absent : Presence::required;
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
  const Presence scales = spec_.scales_shares ? Presence::required : Presence::absent;
  std::vector<Role> roles = {
      {.name = "router", .tensor = "ffn_gate_inp.weight", .shape = {count, dim_}},
      stack("gate of experts", "ffn_gate_exps.weight", width, own),
      stack("up of experts", "ffn_up_exps.weight", width, own),
      stack("down of experts", "ffn_down_exps.weight", own, width),
      vector_role("router bias", "ffn_gate_inp.bias", count),
      biases("gate biases", "ffn_gate_exps.bias", width),
      biases("up biases", "ffn_up_exps.bias", width),
      biases("down biases", "ffn_down_exps.bias", own),
      vector_role("choice bias", "exp_probs_b.bias", count,
                  spec_.by_token > 0 ? Presence::absent : Presence::optional),
      {.name = "latent in", .tensor = "ffn_latent_down.weight", .shape = {own, dim_}, .presence = latent},
      {.name = "latent out",
       .tensor = "ffn_latent_up.weight",
       .shape = {dim_, own},
       .presence = latent,
       .reads = kMadeRows},
      vector_role("share scales", "ffn_down_exps.scale", count, scales),
      {.name = "experts of tokens",
       .tensor = "ffn_gate_tid2eid.weight",
       .shape = {spec_.by_token, spec_.used},
       .kind = RoleKind::table,
       .presence = spec_.by_token > 0 ? Presence::required : Presence::absent,
       .below = count}};
  roles[kGate].meets_next = spec_.gated;
  roles[kGate].presence = gate;
  if (!spec_.gated) roles[kGateBias].presence = Presence::absent;
  if (spec_.latent != 0) roles[kGate].reads = roles[kUp].reads = kLatentRows;
  if (spec_.gated) {  // files may have gate and up of each expert in one
    roles[kGate].part = {"ffn_gate_exps.weight", "ffn_gate_up_exps.weight", 0, 2 * width};
    roles[kUp].part = {"ffn_gate_exps.weight", "ffn_gate_up_exps.weight", width, 2 * width};
  }
  roles[kDown].reads = Role::kInside;
  return roles;
}

void ExpertMlpBlock::forward(const BlockStep& step) const {
  const auto& w = step.weights;
  const size_t choices = step.in.f32.rows * spec_.used;
  const std::span chosen(reinterpret_cast<uint32_t*>(step.scratch[kChosenRows].f32.data), choices);
  const std::span shares(step.scratch[kShareRows].f32.data, choices);
  step.backend.route_experts({.in = step.router_in == nullptr ? step.in : *step.router_in,
                              .router = w[kRouter],
                              .bias = w[kRouterBias],
                              .choice_bias = w[kChoiceBias],
                              .share_scales = w[kShareScales],
                              .by_token = w[kByToken],
                              .routing = spec_.routing,
                              .used = spec_.used,
                              .experts = chosen,
                              .shares = shares});
  const bool latent = spec_.latent != 0;
  // As they are, in the form that the next product wants.
  const auto settle = [&](uint8_t which) {
    step.backend.activate({.gate = step.scratch[which].f32,
                           .up = {},
                           .function = {.kind = Nonlinearity::product},
                           .out = step.scratch[which]});
  };
  if (latent) {
    const Projection in[] = {{w[kLatentIn], {}, step.scratch[kLatentRows].f32}};
    step.backend.project({step.in, in});
    settle(kLatentRows);
  }
  const auto sums = [&](size_t role) { return role < step.sums.size() ? step.sums[role] : ColumnSums{}; };
  step.backend.project_experts({.in = latent ? step.scratch[kLatentRows] : step.in,
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
                                .out = latent ? step.scratch[kMadeRows].f32 : step.out,
                                .gate_sums = sums(kGate),
                                .up_sums = sums(kUp),
                                .down_sums = sums(kDown)});
  if (!latent) return;
  settle(kMadeRows);
  const Projection out[] = {{w[kLatentOut], {}, step.out}};
  step.backend.project({step.scratch[kMadeRows], out});
}

}  // namespace

BlockPtr make_block(const ExpertMlpSpec& spec, uint32_t dim) {
  return std::make_shared<ExpertMlpBlock>(spec, dim);
}

}  // namespace quire
