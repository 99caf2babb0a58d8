#include "model/blocks/delta_net.h"

#include "model/blocks/recurrent.h"

namespace quire {
namespace {

class DeltaNetBlock : public Block {
 public:
  DeltaNetBlock(const DeltaNetSpec& spec, uint32_t dim)
      : spec_(spec),
        dim_(dim),
        value_(size_t(spec.value_heads) * spec.value_dim),
        channels_(2 * size_t(spec.key_heads) * spec.key_dim + value_) {}

  std::vector<Role> roles() const override;
  std::vector<size_t> scratch() const override {
    const size_t heads = spec_.value_heads;
    return {channels_,
            channels_,
            value_,
            spec_.gates_together ? 2 * heads : heads,
            spec_.gates_together ? 0 : heads,
            value_};
  }
  KvLayer cached() const override {
    return {convolution_stream(spec_.span, channels_),
            state_stream(spec_.value_heads, uint64_t(spec_.key_dim) * spec_.value_dim)};
  }
  StepCost cost(const StepShape& shape, std::span<const KvLayerLayout* const> streams) const override;
  void forward(const BlockStep& step) const override;

 private:
  enum : size_t { kMixed, kGate, kBeta, kAlpha, kOut, kConvolution, kRate, kAlphaBias, kNorm };  // roles
  enum : uint8_t { kMixedRows, kConvolvedRows, kGateRows, kBetaRows, kAlphaRows, kReadRows };    // scratch

  DeltaNetSpec spec_;
  uint64_t dim_;
  size_t value_, channels_;  // widths
};

std::vector<Role> DeltaNetBlock::roles() const {
  const uint64_t heads = spec_.value_heads;
  const auto matrix = [&](const char* name, const char* tensor, uint64_t rows) -> Role {
    return {.name = name, .tensor = tensor, .shape = {rows, dim_}};
  };
  const bool together = spec_.gates_together;
  std::vector<Role> roles = {
      matrix("query, key and value", "attn_qkv.weight", channels_),
      matrix("output gate", "attn_gate.weight", value_),
      together ? matrix("beta and alpha", "ssm_ba.weight", 2 * heads)
               : matrix("beta", "ssm_beta.weight", heads),
      matrix("alpha", "ssm_alpha.weight", heads),
      {.name = "mixer out", .tensor = "ssm_out.weight", .shape = {dim_, value_}, .reads = kReadRows},
      convolution_role("ssm_conv1d.weight", channels_, spec_.span),
      vector_role("decay rate", "ssm_a", heads, Presence::required),
      vector_role("alpha bias", "ssm_dt.bias", heads, Presence::required),
      vector_role("mixer norm", "ssm_norm.weight", spec_.value_dim, Presence::required)};
  if (together) roles[kAlpha].presence = Presence::absent;
  return roles;
}

StepCost DeltaNetBlock::cost(const StepShape& shape, std::span<const KvLayerLayout* const> streams) const {
  const double per_value = 7 * double(spec_.key_dim);  // multiplied and added for each value of a head
  return recurrent_cost(per_value * double(value_) + 2.0 * spec_.span * double(channels_), shape, streams);
}

void DeltaNetBlock::forward(const BlockStep& step) const {
  const auto& w = step.weights;
  const auto rows = [&](uint8_t which) { return step.scratch[which].f32; };
  const Projection projections[] = {{w[kMixed], {}, rows(kMixedRows)},
                                    {w[kGate], {}, rows(kGateRows)},
                                    {w[kBeta], {}, rows(kBetaRows)},
                                    {w[kAlpha], {}, rows(kAlphaRows)}};
  step.backend.project({step.in, std::span(projections).first(spec_.gates_together ? 3 : 4)});
  step.backend.convolve({.in = rows(kMixedRows),
                         .out = rows(kConvolvedRows),
                         .span = spec_.span,
                         .weight = w[kConvolution],
                         .bias = {},
                         .function = Gate{},
                         .inputs = step.kv[0]});
  step.backend.delta_net({.mixed = rows(kConvolvedRows),
                          .gate = rows(kGateRows),
                          .beta = rows(kBetaRows),
                          .alpha = spec_.gates_together ? Rows{} : rows(kAlphaRows),
                          .key_heads = spec_.key_heads,
                          .value_heads = spec_.value_heads,
                          .key_dim = spec_.key_dim,
                          .value_dim = spec_.value_dim,
                          .order = spec_.order,
                          .rate = w[kRate],
                          .alpha_bias = w[kAlphaBias],
                          .norm = w[kNorm],
                          .epsilon = spec_.norm.epsilon,
                          .state = step.kv[1],
                          .out = step.scratch[kReadRows]});
  const Projection out[] = {{w[kOut], {}, step.out}};
  step.backend.project({step.scratch[kReadRows], out});
}

}  // namespace

BlockPtr make_block(const DeltaNetSpec& spec, uint32_t dim) {
  return std::make_shared<DeltaNetBlock>(spec, dim);
}

}  // namespace quire
