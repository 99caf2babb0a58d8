#include "backend/cuda/matmul/experts.h"

#include "backend/cuda/matmul/expert_kernels.h"
#include "backend/cuda/matmul/head_products.h"

namespace quire::cuda {
namespace {

// Every source's rows of one expert.
std::vector<MatrixView> rows_of_expert(std::span<const MatrixView> sources, uint32_t experts,
                                       uint32_t expert) {
  std::vector<MatrixView> rows;
  for (const MatrixView& source : sources) {
    CHECK(source.rows % experts == 0);
    const size_t count = source.rows / experts;
    rows.push_back(source.slice(expert * count, count));
  }
  return rows;
}

// Items of every plan fit.
uint32_t items_room(const ExpertCounts& counts) {
  return most_items(counts, 8);
}

template <WeightFormat kFormat, class Output>
void launch_format(ProductKernel kernel, const ExpertCall<Output>& call) {
  switch (kernel) {
    case ProductKernel::plain:
      return launch_experts_plain<kFormat>(call);
    case ProductKernel::stream:
      return launch_experts_stream<kFormat>(call);
    case ProductKernel::tile:
      return launch_experts_tile<kFormat>(call);
  }
}

template <class Output>
void launch_products(ProductKernel kernel, const ExpertCall<Output>& call) {
  switch (call.stack.shape.format) {
    case WeightFormat::bf16:
      return launch_format<WeightFormat::bf16>(kernel, call);
    case WeightFormat::q8_0:
      return launch_format<WeightFormat::q8_0>(kernel, call);
    case WeightFormat::q4_0:
      return launch_format<WeightFormat::q4_0>(kernel, call);
    case WeightFormat::q4_k:
      return launch_format<WeightFormat::q4_k>(kernel, call);
    case WeightFormat::q6_k:
      return launch_format<WeightFormat::q6_k>(kernel, call);
    case WeightFormat::mxfp4:
      return launch_format<WeightFormat::mxfp4>(kernel, call);
  }
}

}  // namespace

WeightShape expert_shape(std::span<const MatrixView> sources, uint32_t experts, const RowOrder& order) {
  return packed_shape(rows_of_expert(sources, experts, 0), order);
}

ExpertStack experts_at(const WeightShape& shape, uint32_t experts, const uint8_t* data) {
  // Padded rows make the stack one weight of all their tiles.
  const WeightShape all = {shape.format, shape.padded_rows() * experts, shape.cols};
  return {shape, experts, data, packed_at(all, data).map};
}

ExpertStack pack_experts(std::span<const MatrixView> sources, uint32_t experts, const RowOrder& order,
                         const PackStaging& staging, uint8_t* destination, cudaStream_t stream) {
  const WeightShape shape = expert_shape(sources, experts, order);
  for (uint32_t expert = 0; expert < experts; ++expert) {
    pack(rows_of_expert(sources, experts, expert), order, staging, destination + expert * shape.bytes(),
         stream);
  }
  return experts_at(shape, experts, destination);
}

ExpertWorkspace::ExpertWorkspace(const Limits& limits)
    : limits_(limits),
      device_{compute_capability(), uint32_t(multiprocessors())},
      item_count_(sizeof(uint32_t)),
      items_(items_room(limits.counts) * sizeof(ExpertItem)),
      slots_(limits.counts.pairs() * sizeof(uint32_t)),
      pairs_(limits.counts.pairs() * 2 * sizeof(uint32_t)),
      gathered_(item_activations(limits.counts.pairs(), limits.dim)),
      hidden_(item_activations(limits.counts.pairs(), limits.width)),
      rows_(size_t(limits.counts.pairs()) * limits.dim * sizeof(float)) {
  // What pads activations is multiplied by zeros, which a NaN left there would not survive.
  gathered_.fill(0);
  hidden_.fill(0);
}

size_t ExpertWorkspace::bytes(const Limits& limits) {
  const size_t pairs = limits.counts.pairs();
  return sizeof(uint32_t) + items_room(limits.counts) * sizeof(ExpertItem) + pairs * 3 * sizeof(uint32_t) +
         item_activations(uint32_t(pairs), limits.dim) + item_activations(uint32_t(pairs), limits.width) +
         pairs * limits.dim * sizeof(float);
}

void project_experts_by(const ExpertPlan& plan, const DeviceExperts& params, const ExpertWorkspace& workspace,
                        cudaStream_t stream) {
  const ExpertCounts counts = {params.in.tokens, params.used, params.gate_up.experts};
  const uint32_t dim = params.in.cols, width = params.down.shape.cols;
  const ExpertWorkspace::Limits& limits = workspace.limits();
  CHECK(counts.tokens > 0 && counts.pairs() <= limits.counts.pairs() && dim <= limits.dim &&
        width <= limits.width && items_room(counts) <= items_room(limits.counts));
  const bool gated = params.plain == nullptr;
  CHECK(params.gate_up.shape.cols == dim && params.gate_up.shape.rows == (gated ? 2 : 1) * width &&
        params.down.shape.rows == dim && params.down.experts == counts.experts && params.out.width == dim &&
        params.out.rows == counts.tokens);
  const ExpertSorting sorting = {params.experts,
                                 counts,
                                 plan.item_tokens,
                                 workspace.item_count(),
                                 workspace.items(),
                                 workspace.slots(),
                                 reinterpret_cast<uint2*>(workspace.pairs())};
  sort_by_expert(sorting, workspace.device(), stream);
  gather_activations(sorting, params.in, workspace.gathered(), workspace.device(), stream);
  const uint32_t items = most_items(counts, plan.item_tokens);
  if (gated) {
    const ExpertHidden hidden = {params.function, params.gate_bias, params.up_bias, workspace.hidden(),
                                 width};
    launch_products(plan.kernel, ExpertCall<ExpertHidden>{
                                     params.gate_up, workspace.gathered(), sorting.item_count, sorting.items,
                                     items, plan.item_tokens, hidden, workspace.device(), stream});
  } else {
    const ExpertRows ups = {params.plain, params.up_bias, width};
    launch_products(plan.kernel, ExpertCall<ExpertRows>{params.gate_up, workspace.gathered(),
                                                        sorting.item_count, sorting.items, items,
                                                        plan.item_tokens, ups, workspace.device(), stream});
    activate_items(sorting, {params.plain, width, params.function, workspace.hidden()}, workspace.device(),
                   stream);
  }
  const ExpertRows rows = {workspace.rows(), params.down_bias, dim};
  launch_products(plan.kernel,
                  ExpertCall<ExpertRows>{params.down, workspace.hidden(), sorting.item_count, sorting.items,
                                         items, plan.item_tokens, rows, workspace.device(), stream});
  add_experts({workspace.rows(), sorting.slots, params.shares, params.used, params.out}, workspace.device(),
              stream);
}

size_t head_room_bytes(uint32_t tokens, uint32_t heads, const WeightShape& shape) {
  return item_activations(tokens * heads, shape.cols) + size_t(tokens) * heads * sizeof(ExpertItem) +
         sizeof(uint32_t);
}

HeadRoom head_room(uint8_t* memory, uint32_t tokens, uint32_t heads, const WeightShape& shape) {
  uint8_t* items = memory + item_activations(tokens * heads, shape.cols);
  uint8_t* count = items + size_t(tokens) * heads * sizeof(ExpertItem);
  return {memory, reinterpret_cast<ExpertItem*>(items), reinterpret_cast<uint32_t*>(count)};
}

void project_heads_by(const ExpertPlan& plan, const DeviceHeads& params, uint8_t* memory,
                      const DeviceTraits& device, cudaStream_t stream) {
  const WeightShape& shape = params.weights.shape;
  const uint32_t tokens = params.tokens(), heads = params.heads;
  CHECK(heads > 0 && params.weights.experts == heads && params.in.width % heads == 0 &&
        params.in.width / heads >= shape.cols && params.out.rows == tokens);
  const size_t rest = params.in.width / heads - shape.cols, out_dim = rest + shape.rows;
  CHECK(params.out.width == heads * out_dim);
  if (tokens == 0) return;
  const HeadRoom room = head_room(memory, tokens, heads, shape);
  gather_heads(params, plan.item_tokens, room, device, stream);
  // A slot's place is that of its token, and then of its head.
  const ExpertRows rows = {.out = params.out.data + rest,
                           .bias = nullptr,
                           .rows = shape.rows,
                           .stride = params.out.stride,
                           .expert_stride = int64_t(out_dim) - int64_t(tokens) * int64_t(params.out.stride)};
  launch_products(plan.kernel,
                  ExpertCall<ExpertRows>{params.weights, room.gathered, room.item_count, room.items,
                                         heads * ((tokens + plan.item_tokens - 1) / plan.item_tokens),
                                         plan.item_tokens, rows, device, stream});
}

void project_heads(const DeviceHeads& params, uint8_t* memory, const DeviceTraits& device,
                   cudaStream_t stream) {
  project_heads_by(plan_heads(device, params.tokens(), params.weights.shape), params, memory, device, stream);
}

void project_experts(const DeviceExperts& params, const ExpertWorkspace& workspace, cudaStream_t stream) {
  const ExpertCounts counts = {params.in.tokens, params.used, params.gate_up.experts};
  project_experts_by(plan_experts(workspace.device(), counts, {params.gate_up.shape, params.down.shape}),
                     params, workspace, stream);
}

}  // namespace quire::cuda
