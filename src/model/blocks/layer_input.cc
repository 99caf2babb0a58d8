#include "model/blocks/layer_input.h"

namespace quire {
namespace {

class LayerInputBlock : public Block {
 public:
  LayerInputBlock(const LayerInputSpec& spec, uint32_t dim) : spec_(spec), dim_(dim) {}

  std::vector<Role> roles() const override {
    const uint64_t width = spec_.width;
    return {{.name = "input gate", .tensor = "inp_gate.weight", .shape = {width, dim_}},
            {.name = "input", .tensor = "proj.weight", .shape = {dim_, width}, .reads = kHiddenRows}};
  }
  std::vector<size_t> scratch() const override { return {spec_.width, spec_.width}; }
  void forward(const BlockStep& step) const override {
    const Projection gate[] = {{step.weights[kGate], {}, step.scratch[kGateRows].f32}};
    step.backend.project({step.in, gate});
    step.backend.activate({.gate = step.scratch[kGateRows].f32,
                           .up = step.layer_input,
                           .function = spec_.gate,
                           .out = step.scratch[kHiddenRows]});
    const Projection out[] = {{step.weights[kOut], {}, step.out}};
    step.backend.project({step.scratch[kHiddenRows], out});
  }

 private:
  enum : size_t { kGate, kOut };              // roles
  enum : uint8_t { kGateRows, kHiddenRows };  // scratch

  LayerInputSpec spec_;
  uint64_t dim_;
};

}  // namespace

BlockPtr make_block(const LayerInputSpec& spec, uint32_t dim) {
  return std::make_shared<LayerInputBlock>(spec, dim);
}

}  // namespace quire
