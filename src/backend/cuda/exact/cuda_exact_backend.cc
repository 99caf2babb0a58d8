#include "backend/cuda/exact/cuda_exact_backend.h"

#include "backend/cuda/exact/exact.h"

namespace quire::cuda {
namespace {

// All of it is kept as the rows of a table of f32.
WeightUse as_rows(const WeightUse& use) {
  return {use.kind == WeightUse::product ? WeightUse::vector : use.kind};
}

}  // namespace

BackendTraits CudaExactBackend::traits() const {
  BackendTraits traits = CudaBackend::traits();
  traits.kernels += "-exact";
  traits.pages = KvFormat::f32;
  traits.attention = ActivationForm::f32;
  return traits;
}

Weight CudaExactBackend::prepare(const Weight& weight, const WeightUse& use) {
  return CudaBackend::prepare(weight, as_rows(use));
}

void CudaExactBackend::prepare_gated(Weight& gate, Weight& up, const WeightUse& use) {
  gate = prepare(gate, use);
  up = prepare(up, use);
}

size_t CudaExactBackend::prepared_bytes(const MatrixView& weight, const WeightUse& use) const {
  return CudaBackend::prepared_bytes(weight, as_rows(use));
}

void CudaExactBackend::norm_quantize(const NormQuantizeParams& params) {
  DeviceAddNorm norm = device_add_norm(params);
  norm.out = {};
  if (params.norm != nullptr) norm.out_f32 = params.out.f32;
  add_norm(norm, stream());
}

void CudaExactBackend::multiply(const Rows& in, const Weight& weight, const Weight& bias, const Rows& out) {
  exact_product({.weight = weight.vector(), .bias = vector_of(bias), .in = in, .out = out}, stream());
}

void CudaExactBackend::project(const ProjectParams& params) {
  for (const Projection& one : params.projections) multiply(params.in.f32, one.weight, one.bias, one.out);
}

void CudaExactBackend::activate(const ActivateParams& params) {
  cuda::activate({.gate = params.gate,
                  .up = params.up,
                  .function = params.function,
                  .out = {},
                  .out_f32 = params.out.f32},
                 stream());
}

void CudaExactBackend::rope_store(const RopeStoreParams& params) {
  DeviceRopeStore store = device_rope_store(params);
  store.query_out = scratch<uint16_t>(query_, params.query.rows * params.query.width);  // taps read these
  store.query_f32 = scratch<float>(exact_query_, params.query.rows * params.query.width);
  cuda::rope_store(store, device_tokens(), stream());
}

void CudaExactBackend::attend(const AttendParams& params) {
  const AttentionParams attention = attention_params(params);
  const GroupPlaces& places = groups_[group_index(params.kv)];
  exact_attention(
      {.query = {exact_query_.as<float>(), params.query.rows, params.query.width, params.query.width},
       .heads = params.heads,
       .rows = attention.rows,
       .key_format = attention.key_format,
       .value_format = attention.value_format,
       .page_ids = attention.page_ids,
       .token_rows = upload_.at(places.token_rows),
       .token_tables = upload_.at(places.token_tables),
       .window = attention.window,
       .scale = params.scale,
       .soft_cap = params.soft_cap,
       .sinks = attention.sinks,
       .out = params.out.f32},
      stream());
}

void CudaExactBackend::project_heads(const ProjectHeadsParams& params) {
  exact_heads({.in = params.in,
               .weight = params.weight.vector(),
               .heads = params.heads,
               .rows = uint32_t(params.weight.view.rows) / params.heads,
               .cols = uint32_t(params.weight.view.cols),
               .out = params.out.f32},
              stream());
}

void CudaExactBackend::route_experts(const RouteExpertsParams& params) {
  const size_t tokens = params.in.f32.rows, experts = params.router.view.rows;
  const Rows scores{scratch<float>(router_scores_, tokens * experts), tokens, experts, experts};
  multiply(params.in.f32, params.router, params.bias, scores);
  route({.scores = scores,
         .choice_bias = vector_of(params.choice_bias),
         .share_scales = vector_of(params.share_scales),
         .routing = params.routing,
         .used = params.used,
         .experts = params.experts.data(),
         .shares = params.shares.data()},
        stream());
}

void CudaExactBackend::project_experts(const ProjectExpertsParams& params) {
  const size_t bytes =
      exact_expert_bytes(params.in.f32.rows, params.used, params.expert_width, params.out.width);
  exact_experts({.in = params.in.f32,
                 .experts = params.experts.data(),
                 .shares = params.shares.data(),
                 .used = params.used,
                 .expert_width = params.expert_width,
                 .gate = vector_of(params.gate),
                 .up = params.up.vector(),
                 .down = params.down.vector(),
                 .gate_bias = vector_of(params.gate_bias),
                 .up_bias = vector_of(params.up_bias),
                 .down_bias = vector_of(params.down_bias),
                 .function = params.function,
                 .out = params.out,
                 .scratch = scratch<float>(exact_experts_, bytes / sizeof(float))},
                stream());
}

void CudaExactBackend::logits(const LogitsParams& params) {
  multiply(params.in.f32, params.head, params.bias, params.out);
  scale_logits(params.out, params.scale, params.soft_cap, stream());
  logits_ = params.out;
}

}  // namespace quire::cuda
