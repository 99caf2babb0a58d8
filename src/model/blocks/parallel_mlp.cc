#include "model/blocks/parallel_mlp.h"

#include <cmath>

namespace quire {
namespace {

// Both parts are blocks as they are elsewhere: their roles and scratch follow this one's own.
class ParallelMlpBlock : public Block {
 public:
  ParallelMlpBlock(const ParallelMlpSpec& spec, uint32_t dim)
      : norm_(spec.norm),
        dim_(dim),
        dense_(make_block(spec.dense, dim)),
        experts_(make_block(spec.experts, dim)),
        dense_roles_(dense_->roles().size()),
        dense_scratch_(dense_->scratch().size()) {}

  std::vector<Role> roles() const override;
  std::vector<size_t> scratch() const override {
    std::vector<size_t> widths(kOwnRows, dim_);
    for (const BlockPtr& part : {dense_, experts_}) {
      const std::vector<size_t> of_part = part->scratch();
      widths.insert(widths.end(), of_part.begin(), of_part.end());
    }
    return widths;
  }
  void forward(const BlockStep& step) const override;

 private:
  enum : size_t { kRouterNorm, kDenseNorm, kExpertNorm, kDensePostNorm, kExpertPostNorm, kOwnRoles };
  enum : uint8_t { kRouterRows, kDenseRows, kExpertRows, kDenseOut, kExpertOut, kOwnRows };  // scratch

  NormSpec norm_;
  uint64_t dim_;
  BlockPtr dense_, experts_;
  size_t dense_roles_, dense_scratch_;
};

std::vector<Role> ParallelMlpBlock::roles() const {
  const auto vector = [&](const char* name, const char* tensor) {
    return vector_role(name, tensor, dim_, Presence::required);
  };
  std::vector<Role> roles = {vector("router norm", "ffn_gate_inp.scale"), vector("norm", "ffn_norm.weight"),
                             vector("norm of experts", "pre_ffw_norm_2.weight"),
                             vector("post norm", "post_ffw_norm_1.weight"),
                             vector("post norm of experts", "post_ffw_norm_2.weight")};
  roles[kRouterNorm].factor = 1.0f / std::sqrt(float(dim_));
  const auto add = [&](const Block& part, uint8_t input, size_t scratch) {
    for (Role& role : part.roles()) {
      const bool reads_input = role.reads == Role::kInput;
      if (reads_input)
        role.reads = role.name == "router" ? uint8_t(kRouterRows) : input;
      else if (role.reads != Role::kInside)
        role.reads += uint8_t(scratch);
      roles.push_back(std::move(role));
    }
  };
  add(*dense_, kDenseRows, kOwnRows);
  add(*experts_, kExpertRows, kOwnRows + dense_scratch_);
  return roles;
}

void ParallelMlpBlock::forward(const BlockStep& step) const {
  const auto norm = [&](size_t role) -> Norm { return {norm_.kind, norm_.epsilon, step.weights[role], {}}; };
  const auto norm_to = [&](size_t role, const Rows& from, const Activation& to) {
    const Norm own = norm(role);
    step.backend.norm_quantize(
        {.stream = from, .branch = {}, .branch_gate = {}, .norm = &own, .rows = {}, .out = to});
  };
  norm_to(kRouterNorm, step.in.f32, step.scratch[kRouterRows]);
  norm_to(kDenseNorm, step.in.f32, step.scratch[kDenseRows]);
  norm_to(kExpertNorm, step.in.f32, step.scratch[kExpertRows]);
  const auto run = [&](const Block& part, uint8_t in, uint8_t out, size_t roles, size_t scratch) {
    part.forward({.backend = step.backend,
                  .layer = step.layer,
                  .in = step.scratch[in],
                  .router_in = &step.scratch[kRouterRows],
                  .out = step.scratch[out].f32,
                  .out_gate = {},
                  .layer_input = {},
                  .weights = step.weights.subspan(roles),
                  .scratch = step.scratch.subspan(scratch),
                  .angles = step.angles,
                  .kv = step.kv,
                  .batch = step.batch,
                  .taps = step.taps,
                  .sums = step.sums.empty() ? step.sums : step.sums.subspan(roles)});
  };
  run(*dense_, kDenseRows, kDenseOut, kOwnRoles, kOwnRows);
  run(*experts_, kExpertRows, kExpertOut, kOwnRoles + dense_roles_, kOwnRows + dense_scratch_);
  norm_to(kDensePostNorm, step.scratch[kDenseOut].f32, {.f32 = step.out, .forms = {}});
  const Norm after_experts = norm(kExpertPostNorm);
  step.backend.norm_quantize({.stream = step.out,
                              .branch = step.scratch[kExpertOut].f32,
                              .branch_gate = {},
                              .branch_norm = &after_experts,
                              .rows = {},
                              .out = {}});
}

}  // namespace

BlockPtr make_block(const ParallelMlpSpec& spec, uint32_t dim) {
  return std::make_shared<ParallelMlpBlock>(spec, dim);
}

}  // namespace quire
