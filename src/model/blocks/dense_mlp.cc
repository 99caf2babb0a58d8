#include "model/blocks/dense_mlp.h"

namespace quire {
namespace {

class DenseMlpBlock : public Block {
 public:
  DenseMlpBlock(const DenseMlpSpec& spec, uint32_t dim) : spec_(spec), dim_(dim) {}

  std::vector<Role> roles() const override;
  std::vector<size_t> scratch() const override {
    return {spec_.width, spec_.gated ? spec_.width : 0, spec_.width};
  }
  void forward(const BlockStep& step) const override;

 private:
  enum : size_t { kGate, kUp, kDown, kGateBias, kUpBias, kDownBias };  // roles
  enum : uint8_t { kGateRows, kUpRows, kHiddenRows };                  // scratch

  DenseMlpSpec spec_;
  uint64_t dim_;
};

std::vector<Role> DenseMlpBlock::roles() const {
  const uint64_t width = spec_.width;
  // What is not gated has its first matrix under the name of the second.
  const std::string first = spec_.gated ? "ffn_gate" : "ffn_up";
  const Presence up = spec_.gated ? Presence::required : Presence::absent;
  std::vector<Role> roles = {
      {.name = "gate", .tensor = first + ".weight", .shape = {width, dim_}},
      {.name = "up", .tensor = "ffn_up.weight", .shape = {width, dim_}, .presence = up},
      {.name = "down", .tensor = "ffn_down.weight", .shape = {dim_, width}, .reads = kHiddenRows},
      vector_role("gate bias", first + ".bias", width),
      vector_role("up bias", "ffn_up.bias", width, spec_.gated ? Presence::optional : Presence::absent),
      vector_role("down bias", "ffn_down.bias", dim_)};
  roles[kGate].meets_next = spec_.gated;
  if (spec_.gated) {  // files may have gate and up in one
    roles[kGate].part = {"ffn_gate.weight", "ffn_up.weight", 0, 2 * width};
    roles[kUp].part = {"ffn_gate.weight", "ffn_up.weight", width, 2 * width};
    roles[kGateBias].part = {"ffn_gate.weight", "ffn_up.bias", 0, 2 * width};
    roles[kUpBias].part = {"ffn_gate.weight", "ffn_up.bias", width, 2 * width};
  }
  return roles;
}

void DenseMlpBlock::forward(const BlockStep& step) const {
  const auto& w = step.weights;
  const Rows gate = step.scratch[kGateRows].f32;
  const Rows up = step.scratch[kUpRows].f32;
  const Activation& hidden = step.scratch[kHiddenRows];
  const Projection projections[] = {{w[kGate], w[kGateBias], gate}, {w[kUp], w[kUpBias], up}};
  step.backend.project({step.in, std::span(projections).first(spec_.gated ? 2 : 1)});
  step.backend.activate(
      {.gate = gate, .up = spec_.gated ? up : Rows{}, .function = spec_.gate, .out = hidden});
  const Projection down[] = {{w[kDown], w[kDownBias], step.out}};
  step.backend.project({hidden, down});
}

}  // namespace

BlockPtr make_block(const DenseMlpSpec& spec, uint32_t dim) {
  return std::make_shared<DenseMlpBlock>(spec, dim);
}

}  // namespace quire
