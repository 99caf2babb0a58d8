#include <algorithm>
#include <iterator>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/matmul/output_rows.h"

// Nothing is gained by writing what the next operation reads at once: the result of one product is held back until that is known.
//
//   project one, norm_quantize, project:  the product adds to the stream, and the norm is the next product's business
//   project gate and up, activate:        the product writes the hidden layer's activations

namespace quire::cuda {
namespace {

constexpr size_t kMostTogether = std::size(StoreParts{}.parts);  // products of one kernel

// Of those that the products' own ends know.
bool has_gated_unit(Nonlinearity kind) {
  return kind == Nonlinearity::silu || kind == Nonlinearity::gelu_tanh || kind == Nonlinearity::gelu_erf ||
         kind == Nonlinearity::clamped_swiglu;
}

}  // namespace

TokenScales CudaBackend::scales_of(const ActivationBlock& in) const {
  return in.data == folded_ ? folded_scales_ : TokenScales{};
}

void CudaBackend::launch_product(const WaitingProduct& waiting) {
  const Projection& one = waiting.one;
  product(weights_.packed(one.weight), waiting.in,
          StoreParts{waiting.scales,
                     {{one.out.data, one.out.stride, vector_of(one.bias), uint32_t(one.weight.view.rows)}}},
          *products_, stream());
}

void CudaBackend::flush() {
  CHECK(!gated_);  // whoever multiplies with a gate and an up asks for `activate` next
  if (product_) launch_product(*product_);
  product_.reset();
  if (norm_) launch_norm(*norm_);
  norm_.reset();
}

// Of many tokens the results are written first and added by a kernel of its own, which is faster and gives the same bits.
void CudaBackend::add_to_residual(const WaitingProduct& waiting, const AddToResidual& output) {
  const PackedWeight& weight = weights_.packed(waiting.one.weight);
  if (waiting.in.tokens <= kAddingProductTokens)
    return product(weight, waiting.in, output, *products_, stream());
  const Rows& rows = waiting.one.out;
  product(weight, waiting.in, StoreRows{rows.data, rows.stride, nullptr}, *products_, stream());
  output_rows(rows, output, *products_, stream());
}

// The product that waits adds to the stream; whoever reads the normed rows scales its results.
void CudaBackend::fold() {
  const WaitingProduct waiting = *product_;
  const NormQuantizeParams params = *norm_;
  product_.reset();
  norm_.reset();
  const ActivationBlock next = block_of(params.out);
  const auto dim = uint32_t(params.stream.width);
  const uint32_t squares = (dim + 15) / 16;
  folded_scales_ = {.squares = scratch<float>(squares_, params.stream.rows * squares),
                    .count = squares,
                    .width = dim,
                    .epsilon = params.norm->epsilon};
  folded_ = next.data;
  add_to_residual(waiting, {.residual = params.stream.data,
                            .stride = params.stream.stride,
                            .gain = params.norm->weight.vector(),
                            .next = {next.data, next.tokens, next.cols},
                            .squares = squares_.as<float>(),
                            .square_count = squares,
                            .bias = vector_of(waiting.one.bias),
                            .factor = params.branch_scale});
}

void CudaBackend::project(const ProjectParams& params) {
  const ActivationBlock in = block_of(params.in);
  if (product_ && norm_ && in.data == block_of(norm_->out).data) {
    fold();
  } else {
    flush();
  }
  const TokenScales scales = scales_of(in);
  const std::span<const Projection> list = params.projections;
  if (list.size() == 2 && DeviceWeights::are_in_turn(list[0].weight, list[1].weight)) {
    gated_ = {{list[0].weight, list[0].bias, list[0].out}, list[1].bias, in, scales};
    return;
  }
  if (list.size() == 1) {
    product_ = {list[0], in, scales};
    return;
  }
  for (size_t i = 0; i < list.size(); i += kMostTogether)
    project_together(list.subspan(i, std::min(kMostTogether, list.size() - i)), in, scales);
}

void CudaBackend::project_together(std::span<const Projection> list, const ActivationBlock& in,
                                   const TokenScales& scales) {
  const PackedWeight* whole = list.size() > 1 ? weights_.together(list) : nullptr;
  if (whole == nullptr) {
    for (const Projection& one : list) launch_product({one, in, scales});
    return;
  }
  StoreParts output{.scales = scales, .parts = {}};
  for (size_t i = 0; i < list.size(); ++i)
    output.parts[i] = {list[i].out.data, list[i].out.stride, vector_of(list[i].bias),
                       uint32_t(list[i].weight.view.rows)};
  product(*whole, in, output, *products_, stream());
}

void CudaBackend::activate(const ActivateParams& params) {
  const ActivationBlock next = block_of(params.out);
  if (gated_ && gated_->gate.out.data == params.gate.data) {
    CHECK(has_gated_unit(params.function.kind));
    product(weights_.packed(gated_->gate.weight), gated_->in,
            GatedUnit{.scales = gated_->scales,
                      .next = {next.data, next.tokens, next.cols},
                      .function = params.function,
                      .gate_bias = vector_of(gated_->gate.bias),
                      .up_bias = vector_of(gated_->up_bias)},
            *products_, stream());
    gated_.reset();
    return;
  }
  flush();
  // What is made in its own place may be read there again.
  const bool in_place = params.out.f32.data == params.gate.data;
  cuda::activate({.gate = params.gate,
                  .up = params.up,
                  .function = params.function,
                  .out = next,
                  .out_f32 = in_place ? params.out.f32 : floats_of(params.out)},
                 stream());
}

}  // namespace quire::cuda
