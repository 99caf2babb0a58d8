#include "model/blocks/kimi_delta.h"

#include <tuple>

#include "model/blocks/recurrent.h"

namespace quire {
namespace {

class KimiDeltaBlock : public Block {
 public:
  KimiDeltaBlock(const KimiDeltaSpec& spec, uint32_t dim)
      : spec_(spec), dim_(dim), width_(size_t(spec.heads) * spec.head_dim) {}

  std::vector<Role> roles() const override;
  std::vector<size_t> scratch() const override {
    return {3 * width_, 3 * width_, width_, width_, spec_.heads, spec_.head_dim, spec_.head_dim, width_};
  }
  KvLayer cached() const override {
    const KvStream inputs = convolution_stream(spec_.span, width_);
    return {inputs, inputs, inputs, state_stream(spec_.heads, uint64_t(spec_.head_dim) * spec_.head_dim)};
  }
  StepCost cost(const StepShape& shape, std::span<const KvLayerLayout* const> streams) const override {
    const double per_value = 8 * double(spec_.head_dim) + 6.0 * spec_.span;
    return recurrent_cost(per_value * double(width_), shape, streams);
  }
  void forward(const BlockStep& step) const override;

 private:
  enum : size_t {  // roles
    kQuery,
    kKey,
    kValue,
    kQueryConvolution,
    kKeyConvolution,
    kValueConvolution,
    kForgetIn,
    kForgetOut,
    kBeta,
    kGateIn,
    kGateOut,
    kOut,
    kRate,
    kForgetBias,
    kNorm
  };
  enum : uint8_t {  // scratch
    kMixedRows,
    kConvolvedRows,
    kForgetRows,
    kGateRows,
    kBetaRows,
    kForgetInRows,
    kGateInRows,
    kReadRows
  };

  KimiDeltaSpec spec_;
  uint64_t dim_;
  size_t width_;  // of all heads
};

std::vector<Role> KimiDeltaBlock::roles() const {
  const uint64_t width = width_, head_dim = spec_.head_dim;
  const auto matrix = [&](const char* name, const char* tensor, uint64_t rows, uint64_t cols,
                          uint8_t reads = Role::kInput) -> Role {
    return {.name = name, .tensor = tensor, .shape = {rows, cols}, .reads = reads};
  };
  return {matrix("query", "attn_q.weight", width, dim_),
          matrix("key", "attn_k.weight", width, dim_),
          matrix("value", "attn_v.weight", width, dim_),
          convolution_role("ssm_conv1d_q.weight", width, spec_.span),
          convolution_role("ssm_conv1d_k.weight", width, spec_.span),
          convolution_role("ssm_conv1d_v.weight", width, spec_.span),
          matrix("forget gate in", "ssm_f_a.weight", head_dim, dim_),
          matrix("forget gate out", "ssm_f_b.weight", width, head_dim, kForgetInRows),
          matrix("beta", "ssm_beta.weight", spec_.heads, dim_),
          matrix("output gate in", "ssm_g_a.weight", head_dim, dim_),
          matrix("output gate out", "ssm_g_b.weight", width, head_dim, kGateInRows),
          matrix("mixer out", "attn_output.weight", dim_, width, kReadRows),
          vector_role("decay rate", "ssm_a", spec_.heads, Presence::required),
          vector_role("forget bias", "ssm_dt.bias", width, Presence::required),
          vector_role("mixer norm", "ssm_norm.weight", head_dim, Presence::required)};
}

void KimiDeltaBlock::forward(const BlockStep& step) const {
  const auto& w = step.weights;
  const auto rows = [&](uint8_t which) { return step.scratch[which].f32; };
  const auto part = [&](uint8_t which, size_t index) { return rows(which).columns(index * width_, width_); };
  // What the gates are made of takes the way through a few values of the stream's width.
  const Projection projections[] = {
      {w[kQuery], {}, part(kMixedRows, 0)},    {w[kKey], {}, part(kMixedRows, 1)},
      {w[kValue], {}, part(kMixedRows, 2)},    {w[kBeta], {}, rows(kBetaRows)},
      {w[kForgetIn], {}, rows(kForgetInRows)}, {w[kGateIn], {}, rows(kGateInRows)}};
  step.backend.project({step.in, projections});
  for (const auto& [in, out, weight] :
       {std::tuple(kForgetInRows, kForgetRows, kForgetOut), std::tuple(kGateInRows, kGateRows, kGateOut)}) {
    step.backend.activate(
        {.gate = rows(in), .up = {}, .function = {.kind = Nonlinearity::product}, .out = step.scratch[in]});
    const Projection up[] = {{w[weight], {}, rows(out)}};
    step.backend.project({step.scratch[in], up});
  }
  for (size_t i = 0; i < 3; ++i) {
    step.backend.convolve({.in = part(kMixedRows, i),
                           .out = part(kConvolvedRows, i),
                           .span = spec_.span,
                           .weight = w[kQueryConvolution + i],
                           .bias = {},
                           .function = Gate{},
                           .inputs = step.kv[i]});
  }
  step.backend.delta_net({.mixed = rows(kConvolvedRows),
                          .gate = rows(kGateRows),
                          .gate_function = Nonlinearity::sigmoid,
                          .beta = rows(kBetaRows),
                          .alpha = rows(kForgetRows),
                          .key_heads = spec_.heads,
                          .value_heads = spec_.heads,
                          .key_dim = spec_.head_dim,
                          .value_dim = spec_.head_dim,
                          .rate = w[kRate],
                          .alpha_bias = w[kForgetBias],
                          .norm = w[kNorm],
                          .epsilon = spec_.norm.epsilon,
                          .state = step.kv[3],
                          .out = step.scratch[kReadRows]});
  const Projection out[] = {{w[kOut], {}, step.out}};
  step.backend.project({step.scratch[kReadRows], out});
}

}  // namespace

BlockPtr make_block(const KimiDeltaSpec& spec, uint32_t dim) {
  return std::make_shared<KimiDeltaBlock>(spec, dim);
}

}  // namespace quire
