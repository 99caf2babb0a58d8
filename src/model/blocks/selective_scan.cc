#include "model/blocks/recurrent.h"
#include "model/blocks/state_space.h"

namespace quire {
namespace {

class SelectiveScanBlock : public Block {
 public:
  SelectiveScanBlock(const SelectiveScanSpec& spec, uint32_t dim) : spec_(spec), dim_(dim) {}

  std::vector<Role> roles() const override;
  std::vector<size_t> scratch() const override {
    const size_t width = spec_.width;
    return {2 * width,
            width,
            size_t(spec_.rank) + 2 * spec_.state_dim,
            spec_.rank,
            spec_.state_dim,
            spec_.state_dim,
            width,
            width};
  }
  KvLayer cached() const override {
    return {convolution_stream(spec_.span, spec_.width),
            state_stream(1, uint64_t(spec_.state_dim) * spec_.width)};
  }
  StepCost cost(const StepShape& shape, std::span<const KvLayerLayout* const> streams) const override {
    const double per_value =
        28 * double(spec_.state_dim) + 2.0 * spec_.span;  // an exponential is some twenty
    return recurrent_cost(per_value * spec_.width, shape, streams);
  }
  void forward(const BlockStep& step) const override;

 private:
  enum : size_t {  // roles
    kIn,
    kOut,
    kSelect,
    kStep,
    kConvolution,
    kConvolutionBias,
    kRate,
    kSkip,
    kStepBias,
    kStepNorm,
    kKeyNorm,
    kQueryNorm,
    kInBias,
    kOutBias
  };
  enum : uint8_t {  // scratch
    kInRows,
    kConvolvedRows,
    kSelectedRows,
    kRankRows,
    kKeyRows,
    kQueryRows,
    kStepRows,
    kReadRows
  };

  SelectiveScanSpec spec_;
  uint64_t dim_;
};

std::vector<Role> SelectiveScanBlock::roles() const {
  const uint64_t width = spec_.width, state = spec_.state_dim, rank = spec_.rank;
  const Presence norms = spec_.has_norms ? Presence::required : Presence::absent;
  const auto matrix = [&](const char* name, const char* tensor, uint64_t rows, uint64_t cols,
                          uint8_t reads = Role::kInput) -> Role {
    return {.name = name, .tensor = tensor, .shape = {rows, cols}, .reads = reads};
  };
  return {matrix("mixer in", "ssm_in.weight", 2 * width, dim_),
          matrix("mixer out", "ssm_out.weight", dim_, width, kReadRows),
          matrix("selection", "ssm_x.weight", rank + 2 * state, width, kConvolvedRows),
          matrix("steps", "ssm_dt.weight", width, rank, kRankRows),
          convolution_role("ssm_conv1d.weight", width, spec_.span),
          vector_role("convolution bias", "ssm_conv1d.bias", width),
          {.name = "decay rate", .tensor = "ssm_a", .shape = {width, state}, .kind = RoleKind::vector},
          vector_role("skip", "ssm_d", width, Presence::required),
          vector_role("step bias", "ssm_dt.bias", width, Presence::required),
          vector_role("step norm", "ssm_dt_norm.weight", rank, norms),
          vector_role("key norm", "ssm_b_norm.weight", state, norms),
          vector_role("query norm", "ssm_c_norm.weight", state, norms),
          vector_role("mixer in bias", "ssm_in.bias", 2 * width),
          vector_role("mixer out bias", "ssm_out.bias", dim_)};
}

void SelectiveScanBlock::forward(const BlockStep& step) const {
  const auto& w = step.weights;
  const auto rows = [&](uint8_t which) { return step.scratch[which].f32; };
  const size_t width = spec_.width, rank = spec_.rank, state = spec_.state_dim;
  // As they are, or normed, in the form that the next product wants.
  const auto norm = [&](const Rows& from, size_t weight, uint8_t to) {
    const Norm norm{spec_.has_norms ? spec_.norm.kind : NormKind::none,
                    spec_.norm.epsilon,
                    spec_.has_norms ? w[weight] : Weight{},
                    {}};
    step.backend.norm_quantize({.stream = from,
                                .branch = {},
                                .branch_gate = {},
                                .norm = &norm,
                                .rows = {},
                                .out = step.scratch[to]});
  };
  const Projection projections[] = {{w[kIn], w[kInBias], rows(kInRows)}};
  step.backend.project({step.in, projections});
  step.backend.convolve({.in = rows(kInRows).columns(0, width),
                         .out = rows(kConvolvedRows),
                         .span = spec_.span,
                         .weight = w[kConvolution],
                         .bias = w[kConvolutionBias],
                         .function = {},
                         .inputs = step.kv[0]});
  step.backend.activate(
      {.gate = rows(kConvolvedRows), .up = {}, .function = {}, .out = step.scratch[kConvolvedRows]});
  const Projection selection[] = {{w[kSelect], {}, rows(kSelectedRows)}};
  step.backend.project({step.scratch[kConvolvedRows], selection});
  norm(rows(kSelectedRows).columns(0, rank), kStepNorm, kRankRows);
  norm(rows(kSelectedRows).columns(rank, state), kKeyNorm, kKeyRows);
  norm(rows(kSelectedRows).columns(rank + state, state), kQueryNorm, kQueryRows);
  const Projection steps[] = {{w[kStep], {}, rows(kStepRows)}};
  step.backend.project({step.scratch[kRankRows], steps});
  step.backend.selective_scan({.in = rows(kConvolvedRows),
                               .gate = rows(kInRows).columns(width, width),
                               .step = rows(kStepRows),
                               .key = rows(kKeyRows),
                               .query = rows(kQueryRows),
                               .rate = w[kRate],
                               .step_bias = w[kStepBias],
                               .skip = w[kSkip],
                               .state = step.kv[1],
                               .out = step.scratch[kReadRows]});
  const Projection out[] = {{w[kOut], w[kOutBias], step.out}};
  step.backend.project({step.scratch[kReadRows], out});
}

}  // namespace

BlockPtr make_block(const SelectiveScanSpec& spec, uint32_t dim) {
  return std::make_shared<SelectiveScanBlock>(spec, dim);
}

}  // namespace quire
