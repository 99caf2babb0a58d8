#include "model/blocks/short_convolution.h"

#include "model/blocks/recurrent.h"

namespace quire {
namespace {

class ShortConvolutionBlock : public Block {
 public:
  ShortConvolutionBlock(const ShortConvolutionSpec& spec, uint32_t dim) : spec_(spec), dim_(dim) {}

  std::vector<Role> roles() const override {
    return {{.name = "mixer in", .tensor = "shortconv.in_proj.weight", .shape = {3 * dim_, dim_}},
            {.name = "mixer out",
             .tensor = "shortconv.out_proj.weight",
             .shape = {dim_, dim_},
             .reads = kReadRows},
            convolution_role("shortconv.conv.weight", dim_, spec_.span),
            vector_role("mixer in bias", "shortconv.in_proj.bias", 3 * dim_),
            vector_role("mixer out bias", "shortconv.out_proj.bias", dim_),
            vector_role("convolution bias", "shortconv.conv.bias", dim_)};
  }
  std::vector<size_t> scratch() const override { return {3 * dim_, dim_, dim_, dim_}; }
  KvLayer cached() const override { return {convolution_stream(spec_.span, dim_)}; }
  StepCost cost(const StepShape& shape, std::span<const KvLayerLayout* const> streams) const override {
    return recurrent_cost((2.0 * spec_.span + 2) * double(dim_), shape, streams);
  }
  void forward(const BlockStep& step) const override;

 private:
  enum : size_t { kIn, kOut, kConvolution, kInBias, kOutBias, kConvolutionBias };  // roles
  enum : uint8_t { kInRows, kOpenedRows, kConvolvedRows, kReadRows };              // scratch

  ShortConvolutionSpec spec_;
  uint64_t dim_;
};

void ShortConvolutionBlock::forward(const BlockStep& step) const {
  const auto& w = step.weights;
  const Rows in = step.scratch[kInRows].f32;
  const Projection projections[] = {{w[kIn], w[kInBias], in}};
  step.backend.project({step.in, projections});
  const Gate product{.kind = Nonlinearity::product};
  step.backend.activate({.gate = in.columns(0, dim_),
                         .up = in.columns(2 * dim_, dim_),
                         .function = product,
                         .out = step.scratch[kOpenedRows]});
  step.backend.convolve({.in = step.scratch[kOpenedRows].f32,
                         .out = step.scratch[kConvolvedRows].f32,
                         .span = spec_.span,
                         .weight = w[kConvolution],
                         .bias = w[kConvolutionBias],
                         .inputs = step.kv[0]});
  step.backend.activate({.gate = in.columns(dim_, dim_),
                         .up = step.scratch[kConvolvedRows].f32,
                         .function = product,
                         .out = step.scratch[kReadRows]});
  const Projection out[] = {{w[kOut], w[kOutBias], step.out}};
  step.backend.project({step.scratch[kReadRows], out});
}

}  // namespace

BlockPtr make_block(const ShortConvolutionSpec& spec, uint32_t dim) {
  return std::make_shared<ShortConvolutionBlock>(spec, dim);
}

}  // namespace quire
