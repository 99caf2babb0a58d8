#include <algorithm>

#include "backend/cuda/cuda_backend.h"

// What recurrent layers need. Kernels find the states of a step by its upload, so that a recorded graph holds for the next step too.

namespace quire::cuda {

CudaBackend::GroupPlaces CudaBackend::add_states(const KvGroupView& view) {
  GroupPlaces places;
  places.page_ids = upload_.add(view.page_ids);
  places.state_rows = upload_.add(view.state_rows);
  std::vector<uint32_t> begins(view.table_begin.begin(), view.table_begin.end());
  CHECK(begins.size() == batch_.runs.size() && view.state_rows.size() == view.page_ids.size());
  begins.push_back(uint32_t(view.page_ids.size()));
  places.state_begins = upload_.add(begins);
  std::vector<RunPiece> pieces;
  for (uint32_t run = 0; run < batch_.runs.size(); ++run) {
    const uint32_t tokens = batch_.runs[run].count;
    for (uint32_t place = 0; place < tokens; place += kPieceTokens)
      pieces.push_back({run, place, std::min(kPieceTokens, tokens - place)});
  }
  pieces_ = upload_.add(pieces);
  runs_ = upload_.add(batch_.runs);
  return places;
}

StatePages CudaBackend::states_of(const KvView& view) const {
  const size_t group = group_index(view);
  const KvGroupView& pages = kv_[group];
  CHECK(pages.layout->is_state);
  return {.layer = pages.pages + view.layer->offset,
          .page_bytes = pages.layout->page_bytes,
          .head_bytes = view.layer->head_bytes,
          .pages = upload_.at(groups_[group].page_ids),
          .begins = upload_.at(groups_[group].state_begins),
          .rows = upload_.at(groups_[group].state_rows)};
}

void CudaBackend::split_heads(const SplitHeadsParams& params) {
  flush();
  cuda::split_heads(params, stream());
}

void CudaBackend::convolve(const ConvolveParams& params) {
  flush();
  cuda::convolve({.in = params.in,
                  .out = params.out,
                  .span = params.span,
                  .weight = params.weight.vector(),
                  .bias = vector_of(params.bias),
                  .has_function = params.function.has_value(),
                  .function = params.function.value_or(Gate{}),
                  .inputs = states_of(params.inputs),
                  .runs = upload_.at(runs_),
                  .pieces = upload_.at(pieces_),
                  .piece_count = uint32_t(pieces_.count)},
                 stream());
}

void CudaBackend::recur(DeviceRecurrence recurrence, const KvView& state, const Rows& out) {
  recurrence.state = states_of(state);
  recurrence.runs = upload_.at(runs_);
  recurrence.run_count = uint32_t(batch_.runs.size());
  recurrence.out = out;
  cuda::recur(recurrence, stream());
}

void CudaBackend::delta_net(const DeltaNetParams& params) {
  flush();
  const size_t tokens = params.mixed.rows, decays = params.alpha_bias.view.cols;
  const size_t keys = size_t(params.key_heads) * params.key_dim;
  CHECK(params.mixed.width == 2 * keys + size_t(params.value_heads) * params.value_dim);
  const bool of_keys = decays != params.value_heads;
  CHECK(!of_keys || decays == size_t(params.value_heads) * params.key_dim);
  float* decay = scratch<float>(decays_, tokens * decays);
  float* beta = scratch<float>(betas_, tokens * params.value_heads);
  open_delta_gates({.mixed = params.mixed,
                    .key_heads = params.key_heads,
                    .key_dim = params.key_dim,
                    .value_heads = params.value_heads,
                    .beta = params.beta,
                    .alpha = params.alpha,
                    .rate = params.rate.vector(),
                    .alpha_bias = params.alpha_bias.vector(),
                    .decay_count = uint32_t(decays),
                    .decays = decay,
                    .betas = beta},
                   stream());
  recur({.rule = of_keys ? StateRule::delta_of_keys : StateRule::delta,
         .state = {},
         .heads = params.value_heads,
         .key_heads = params.key_heads,
         .keys = params.key_dim,
         .values = params.value_dim,
         .order = params.order,
         .query = params.mixed.data,
         .key = params.mixed.data + keys,
         .key_stride = params.mixed.stride,
         .value = params.mixed.data + 2 * keys,
         .value_stride = params.mixed.stride,
         .decay = decay,
         .decay_stride = decays,
         .beta = beta,
         .beta_stride = params.value_heads,
         .out = {}},
        params.state, params.out.f32);
  end_delta_net({.read = params.out.f32,
                 .dim = params.value_dim,
                 .gate = params.gate,
                 .function = {.kind = params.gate_function},
                 .weight = params.norm.vector(),
                 .epsilon = params.epsilon,
                 .out = block_of(params.out),
                 .out_f32 = floats_of(params.out)},
                stream());
}

void CudaBackend::state_space(const StateSpaceParams& params) {
  flush();
  const size_t tokens = params.mixed.rows, heads = params.heads, inner = heads * params.head_dim;
  const size_t keys = size_t(params.groups) * params.state_dim;
  CHECK(params.mixed.width == inner + 2 * keys && params.gate.width == inner);
  float* decay = scratch<float>(decays_, tokens * heads);
  float* beta = scratch<float>(betas_, tokens * heads);
  state_steps({.in = params.step,
               .bias = params.step_bias.vector(),
               .rate = params.rate.vector(),
               .steps = {beta, tokens, heads, heads},
               .decays = decay},
              stream());
  recur({.rule = StateRule::state_space,
         .state = {},
         .heads = params.heads,
         .key_heads = params.groups,
         .keys = params.state_dim,
         .values = params.head_dim,
         .query = params.mixed.data + inner + keys,
         .key = params.mixed.data + inner,
         .key_stride = params.mixed.stride,
         .value = params.mixed.data,
         .value_stride = params.mixed.stride,
         .decay = decay,
         .decay_stride = heads,
         .beta = beta,
         .beta_stride = heads,
         .out = {}},
        params.state, params.out.f32);
  end_state_space({.read = params.out.f32,
                   .in = params.mixed,
                   .gate = params.gate,
                   .skip = params.skip.vector(),
                   .skip_width = params.head_dim,
                   .groups = params.norm ? params.groups : 0,
                   .weight = vector_of(params.norm),
                   .epsilon = params.epsilon,
                   .out = block_of(params.out),
                   .out_f32 = floats_of(params.out)},
                  stream());
}

void CudaBackend::selective_scan(const SelectiveScanParams& params) {
  flush();
  const size_t width = params.in.width;
  CHECK(params.gate.width == width && params.step.width == width && params.key.stride == params.query.stride);
  state_steps({.in = params.step,
               .bias = params.step_bias.vector(),
               .rate = nullptr,
               .steps = params.step,
               .decays = nullptr},
              stream());
  recur({.rule = StateRule::selective,
         .state = {},
         .heads = 1,
         .key_heads = 1,
         .keys = uint32_t(params.key.width),
         .values = uint32_t(width),
         .query = params.query.data,
         .key = params.key.data,
         .key_stride = params.key.stride,
         .value = params.in.data,
         .value_stride = params.in.stride,
         .decay = params.rate.vector(),
         .decay_stride = 0,
         .beta = params.step.data,
         .beta_stride = params.step.stride,
         .out = {}},
        params.state, params.out.f32);
  end_state_space({.read = params.out.f32,
                   .in = params.in,
                   .gate = params.gate,
                   .skip = params.skip.vector(),
                   .skip_width = 1,
                   .groups = 0,
                   .weight = nullptr,
                   .epsilon = 0,
                   .out = block_of(params.out),
                   .out_f32 = floats_of(params.out)},
                  stream());
}

}  // namespace quire::cuda
