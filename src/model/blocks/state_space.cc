#include "model/blocks/state_space.h"

#include "model/blocks/recurrent.h"

namespace quire {
namespace {

class StateSpaceBlock : public Block {
 public:
  StateSpaceBlock(const StateSpaceSpec& spec, uint32_t dim)
      : spec_(spec),
        dim_(dim),
        inner_(size_t(spec.heads) * spec.head_dim),
        channels_(inner_ + 2 * size_t(spec.groups) * spec.state_dim) {}

  std::vector<Role> roles() const override;
  std::vector<size_t> scratch() const override {
    return {inner_ + channels_ + spec_.heads, channels_, inner_};
  }
  KvLayer cached() const override {
    return {convolution_stream(spec_.span, channels_),
            state_stream(spec_.heads, uint64_t(spec_.state_dim) * spec_.head_dim)};
  }
  StepCost cost(const StepShape& shape, std::span<const KvLayerLayout* const> streams) const override {
    const double per_value = 5 * double(spec_.state_dim);  // multiplied and added for each value of a head
    return recurrent_cost(per_value * double(inner_) + 2.0 * spec_.span * double(channels_), shape, streams);
  }
  void forward(const BlockStep& step) const override;

 private:
  enum : size_t {
    kIn,
    kOut,
    kConvolution,
    kConvolutionBias,
    kRate,
    kSkip,
    kStepBias,
    kNorm,
    kInBias,
    kOutBias
  };
  enum : uint8_t { kInRows, kConvolvedRows, kReadRows };  // scratch

  StateSpaceSpec spec_;
  uint64_t dim_;
  size_t inner_, channels_;  // widths
};

std::vector<Role> StateSpaceBlock::roles() const {
  const uint64_t heads = spec_.heads;
  const auto one_each = [&](const char* name, const char* tensor) -> Role {
    return {.name = name, .tensor = tensor, .shape = {heads, 1}, .kind = RoleKind::vector};
  };
  return {{.name = "mixer in", .tensor = "ssm_in.weight", .shape = {inner_ + channels_ + heads, dim_}},
          {.name = "mixer out", .tensor = "ssm_out.weight", .shape = {dim_, inner_}, .reads = kReadRows},
          convolution_role("ssm_conv1d.weight", channels_, spec_.span),
          vector_role("convolution bias", "ssm_conv1d.bias", channels_),
          one_each("decay rate", "ssm_a"),
          one_each("skip", "ssm_d"),
          vector_role("step bias", "ssm_dt.bias", heads, Presence::required),
          {.name = "mixer norm",
           .tensor = "ssm_norm.weight",
           .shape = {spec_.groups, inner_ / spec_.groups},
           .kind = RoleKind::vector,
           .presence = spec_.has_norm ? Presence::required : Presence::absent},
          vector_role("mixer in bias", "ssm_in.bias", inner_ + channels_ + heads),
          vector_role("mixer out bias", "ssm_out.bias", dim_)};
}

void StateSpaceBlock::forward(const BlockStep& step) const {
  const auto& w = step.weights;
  const Rows in = step.scratch[kInRows].f32, convolved = step.scratch[kConvolvedRows].f32;
  const Projection projections[] = {{w[kIn], w[kInBias], in}};
  step.backend.project({step.in, projections});
  step.backend.convolve({.in = in.columns(inner_, channels_),
                         .out = convolved,
                         .span = spec_.span,
                         .weight = w[kConvolution],
                         .bias = w[kConvolutionBias],
                         .function = Gate{},
                         .inputs = step.kv[0]});
  step.backend.state_space({.mixed = convolved,
                            .gate = in.columns(0, inner_),
                            .step = in.columns(inner_ + channels_, spec_.heads),
                            .heads = spec_.heads,
                            .groups = spec_.groups,
                            .head_dim = spec_.head_dim,
                            .state_dim = spec_.state_dim,
                            .rate = w[kRate],
                            .step_bias = w[kStepBias],
                            .skip = w[kSkip],
                            .norm = w[kNorm],
                            .epsilon = spec_.norm.epsilon,
                            .state = step.kv[1],
                            .out = step.scratch[kReadRows]});
  const Projection out[] = {{w[kOut], w[kOutBias], step.out}};
  step.backend.project({step.scratch[kReadRows], out});
}

}  // namespace

BlockPtr make_block(const StateSpaceSpec& spec, uint32_t dim) {
  return std::make_shared<StateSpaceBlock>(spec, dim);
}

}  // namespace quire
