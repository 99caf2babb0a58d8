#include "model/blocks/dense_mlp.h"

#include "model/blocks/gathered.h"

namespace quire {
namespace {

class DenseMlpBlock : public Block {
 public:
  DenseMlpBlock(const DenseMlpSpec& spec, uint32_t dim) : spec_(spec), dim_(dim) {}

  std::vector<Role> roles() const override;
  std::vector<size_t> scratch() const override {
    const size_t own = rows_of(spec_.width, spec_.place).count;
    return {own, spec_.gated ? own : 0, spec_.width};
  }
  bool gates_output() const override { return spec_.gated_output; }
  void forward(const BlockStep& step) const override;

 private:
  enum : size_t { kGate, kUp, kDown, kGateBias, kUpBias, kDownBias, kOutputGate };  // roles
  enum : uint8_t { kGateRows, kUpRows, kHiddenRows };                               // scratch

  DenseMlpSpec spec_;
  uint64_t dim_;
};

std::vector<Role> DenseMlpBlock::roles() const {
  const uint64_t width = spec_.width;
  // What is not gated has its first matrix under the name of the second.
  const std::string gate = "ffn_gate" + spec_.suffix, second = "ffn_up" + spec_.suffix;
  const std::string down = "ffn_down" + spec_.suffix;
  const std::string first = spec_.gated ? gate : second;
  const Presence up = spec_.gated ? Presence::required : Presence::absent;
  std::vector<Role> roles = {
      {.name = "gate", .tensor = first + ".weight", .shape = {width, dim_}},
      {.name = "up", .tensor = second + ".weight", .shape = {width, dim_}, .presence = up},
      {.name = "down", .tensor = down + ".weight", .shape = {dim_, width}, .reads = kHiddenRows},
      vector_role("gate bias", first + ".bias", width),
      vector_role("up bias", second + ".bias", width, spec_.gated ? Presence::optional : Presence::absent),
      vector_role("down bias", down + ".bias", dim_),
      {.name = "output gate",
       .tensor = "ffn_gate_inp" + spec_.suffix + ".weight",
       .shape = {dim_},
       .presence = spec_.gated_output ? Presence::required : Presence::absent}};
  roles[kGate].meets_next = spec_.gated && !spec_.spread;
  if (spec_.gated) {  // files may have gate and up in one
    const std::string unless = gate + ".weight";
    roles[kGate].part = {unless, second + ".weight", 0, 2 * width};
    roles[kUp].part = {unless, second + ".weight", width, 2 * width};
    roles[kGateBias].part = {unless, second + ".bias", 0, 2 * width};
    roles[kUpBias].part = {unless, second + ".bias", width, 2 * width};
  }
  if (spec_.place.is_alone()) return roles;
  for (const size_t role : {kGate, kUp, kGateBias, kUpBias})
    roles[role] = divided(std::move(roles[role]), rows_of(width, spec_.place));
  for (const size_t role : {kDown, kDownBias})
    roles[role] = divided(std::move(roles[role]), rows_of(dim_, spec_.place));
  return roles;
}

void DenseMlpBlock::forward(const BlockStep& step) const {
  const auto& w = step.weights;
  const Rows gate = step.scratch[kGateRows].f32;
  const Rows up = step.scratch[kUpRows].f32;
  const Activation& hidden = step.scratch[kHiddenRows];
  const Activation own = own_columns_of_product(hidden, spec_.place);
  const Projection projections[] = {{w[kGate], w[kGateBias], gate}, {w[kUp], w[kUpBias], up}};
  step.backend.project({step.in, std::span(projections).first(spec_.gated ? 2 : 1)});
  if (spec_.spread) step.backend.cut_below(gate, *spec_.spread);
  step.backend.activate({.gate = gate, .up = spec_.gated ? up : Rows{}, .function = spec_.gate, .out = own});
  gather_product(step, hidden);
  const Projection down[] = {{w[kDown], w[kDownBias], own_rows_of_product(step.out, spec_.place)}};
  step.backend.project({hidden, down});
  gather_product(step, step.out);
  if (!spec_.gated_output) return;
  const Projection gate_of_all[] = {{w[kOutputGate], {}, step.out_gate}};
  step.backend.project({step.in, gate_of_all});
}

}  // namespace

BlockPtr make_block(const DenseMlpSpec& spec, uint32_t dim) {
  return std::make_shared<DenseMlpBlock>(spec, dim);
}

}  // namespace quire
