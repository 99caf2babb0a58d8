#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "backend/cuda/attention/taps.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/matmul/head_products.h"
#include "base/error.h"

namespace quire::cuda {
namespace {

DeviceNorm device_norm(const Norm* norm) {
  if (norm == nullptr || norm->kind == NormKind::none) return {};
  return {norm->kind, norm->epsilon, norm->weight.vector(), norm->bias ? norm->bias.vector() : nullptr};
}

uint32_t norm_weights(const Norm* norm) {
  return norm == nullptr || !norm->weight ? 0 : uint32_t(norm->weight.view.cols);
}

uint32_t norm_width(const Norm* norm, const RopeStoreParams& params) {
  if (norm == nullptr) return 0;
  return params.norm_span != 0 ? params.norm_span : norm_weights(norm);
}

bool covers(const ExpertWorkspace::Limits& room, const ExpertWorkspace::Limits& wanted) {
  return room.counts.tokens >= wanted.counts.tokens && room.counts.experts == wanted.counts.experts &&
         room.counts.used == wanted.counts.used && room.dim == wanted.dim && room.width == wanted.width;
}

}  // namespace

// ---- operations

void CudaBackend::embed(const EmbedParams& params) {
  flush();
  cuda::embed({.table = params.table.view,
               .positions = vector_of(params.positions),
               .scale = params.scale,
               .out = params.out},
              device_tokens(), stream());
}

DeviceAddNorm CudaBackend::device_add_norm(const NormQuantizeParams& params) const {
  DeviceAddNorm norm{.stream = params.stream,
                     .branch = params.branch,
                     .branch_gate = params.branch_gate,
                     .order = params.order,
                     .branch_norm = device_norm(params.branch_norm),
                     .branch_scale = params.branch_scale,
                     .stream_scale = params.stream_scale,
                     .norm = device_norm(params.norm),
                     .row_count = uint32_t(params.stream.rows),
                     .out = params.norm == nullptr ? ActivationBlock{} : block_of(params.out),
                     .out_f32 = params.norm == nullptr ? Rows{} : floats_of(params.out)};
  // Who asks for rows as they are may read them so, too.
  if (params.norm != nullptr && params.norm->kind == NormKind::none) norm.out_f32 = params.out.f32;
  if (!params.rows.empty()) {
    CHECK(params.rows.data() == batch_.logit_rows.data());
    norm.rows = upload_.at(logit_rows_);
    norm.row_count = uint32_t(params.rows.size());
  }
  return norm;
}

void CudaBackend::launch_norm(const NormQuantizeParams& params) {
  const DeviceAddNorm norm = device_add_norm(params);
  if (norm.out.data != nullptr && norm.out.data == folded_) folded_ = nullptr;
  add_norm(norm, stream());
}

void CudaBackend::norm_quantize(const NormQuantizeParams& params) {
  const bool adds_what_waits = product_ && !norm_ && product_->scales.squares == nullptr && params.branch &&
                               params.branch.data == product_->one.out.data;
  const bool is_plain = params.branch_norm == nullptr && !params.branch_gate && params.rows.empty() &&
                        params.order == NormQuantizeParams::Order::add_then_norm &&
                        params.stream_scale == 1 && params.norm != nullptr &&
                        params.norm->kind == NormKind::rms && !params.norm->bias;
  if (adds_what_waits && is_plain) {
    norm_ = params;  // what reads it will tell
    return;
  }
  flush();
  launch_norm(params);
}

void CudaBackend::rope_table(const RopeTableParams& params) {
  flush();
  const std::span<const float> list = params.inverse_frequencies;
  DeviceBuffer& frequencies = frequencies_[list.data()];
  if (frequencies.bytes() == 0) {
    graphs_.start();
    frequencies = DeviceBuffer::of(list);
  }
  cuda::rope_table({.cos = params.cos.data,
                    .sin = params.sin.data,
                    .inverse_frequencies = frequencies.as<float>(),
                    .pairs = uint32_t(list.size()),
                    .scale = params.scale},
                   device_tokens(), stream());
}

DeviceRopeStore CudaBackend::device_rope_store(const RopeStoreParams& params) const {
  const size_t group = group_index(params.kv);
  const KvGroupView& view = kv_[group];
  if (!view.unequal.empty())
    throw Error(
        "heads that keep unequal numbers of rows are not there on a GPU; prune by equal heads, or use "
        "--device cpu");
  const KvLayerShape& shape = params.kv.layer->shape;
  const GroupPlaces& places = groups_[group];
  const auto slot = uint32_t(params.kv.layer - view.layout->layers.data());
  return {.query = params.query,
          .key = params.key,
          .value = params.value,
          .head_dim = params.head_dim,
          .query_norm = device_norm(params.query_norm),
          .key_norm = device_norm(params.key_norm),
          .query_norm_width = norm_width(params.query_norm, params),
          .key_norm_width = norm_width(params.key_norm, params),
          .query_norm_weights = norm_weights(params.query_norm),
          .key_norm_weights = norm_weights(params.key_norm),
          .norm_order = params.norm_order,
          .temperature = params.temperature,
          .table = {.cos = params.cos.data,
                    .sin = params.sin.data,
                    .inverse_frequencies = nullptr,
                    .pairs = uint32_t(params.cos.width)},
          .pairing = params.pairing,
          .rows = paged_rows(*view.layout, slot, view.pages, view.page_count),
          .key_format = shape.key_format,
          .value_format = shape.value_format,
          .token_places = upload_.at(places.token_places),
          .query_numbers = numbers_of(shape.key_format),
          .query_out = nullptr};
}

void CudaBackend::rope_store(const RopeStoreParams& params) {
  flush();
  DeviceRopeStore store = device_rope_store(params);
  store.query_out = scratch<uint16_t>(query_, params.query.rows * params.query.width);
  cuda::rope_store(store, device_tokens(), stream());
}

AttentionParams CudaBackend::attention_params(const AttendParams& params) const {
  const size_t group = group_index(params.kv);
  const KvGroupView& view = kv_[group];
  const KvLayerShape& shape = params.kv.layer->shape;
  const auto slot = uint32_t(params.kv.layer - view.layout->layers.data());
  const ActivationBlock out = block_of(params.out);
  return {.numbers = numbers_of(shape.key_format),
          .key_format = shape.key_format,
          .value_format = shape.value_format,
          .query = query_.as<uint16_t>(),
          .query_rows = uint32_t(params.query.rows),
          .heads = params.heads,
          .rows = paged_rows(*view.layout, slot, view.pages, view.page_count),
          .page_ids = upload_.at(groups_[group].page_ids),
          .window = shape.window,
          .scale = params.scale,
          .soft_cap = params.soft_cap,
          .sinks = vector_of(params.sinks),
          .out = out.data,
          .out_tokens = out.tokens,
          .out_f32 = floats_of(params.out).data};
}

void CudaBackend::attend(const AttendParams& params) {
  flush();
  AttentionParams attention = attention_params(params);
  const AttentionKind kind{
      .group = group_index(params.kv),
      .shape = {attention.rows.kv_heads, attention.group(), attention.window},
      .fast = has_fast_attention(attention),
  };
  const AttentionWork& work = work_for(kind);
  attention.page_ids = upload_.at(groups_[kind.group].page_ids);
  if (attention.out != nullptr) clear_padding(block_of(params.out), stream());
  const auto sums = [&](const AttentionUnitsWork& units) {
    return decode_partial_bytes(units.places, kind.shape, units.columns, attention.rows.value_dim) /
           sizeof(float);
  };
  const AttentionWorkspace memory{scratch<float>(partials_, sums(work.few) + sums(work.parts)),
                                  tile_counter_.as<uint32_t>(),
                                  counters(merge_counters_, work.few.places * kind.shape.kv_heads)};
  const PrefillTile* tiles = upload_.at(work.tiles);
  const DecodeWork few = on_device(work.few);
  if (kind.fast) {
    launch_prefill_attention(attention, tiles, uint32_t(work.tiles.count), memory, stream());
    launch_decode_attention(attention, few, memory, stream());
  } else {
    launch_general_prefill(attention, tiles, uint32_t(work.tiles.count), stream());
    launch_general_units(attention, few, memory.partials, stream());
  }
  launch_general_units(attention, on_device(work.parts), memory.partials + sums(work.few), stream());
}

void CudaBackend::project_heads(const ProjectHeadsParams& params) {
  flush();
  if (params.in.rows == 0) return;
  const auto tokens = uint32_t(params.in.rows);
  const ExpertStack weights = weights_.heads(params.weight, params.heads);
  cuda::project_heads({.in = params.in, .heads = params.heads, .weights = weights, .out = params.out.f32},
                      scratch<uint8_t>(head_room_, head_room_bytes(tokens, params.heads, weights.shape)),
                      products_->device(), stream());
  const ActivationBlock rounded = block_of(params.out);
  if (rounded.data != nullptr)
    write_activations(params.out.f32.data, params.out.f32.stride, rounded, stream());
}

DecodeWork CudaBackend::on_device(const AttentionUnitsWork& work) const {
  return {.units = upload_.at(work.units),
          .unit_count = uint32_t(work.units.count),
          .merges = upload_.at(work.merges),
          .merge_count = uint32_t(work.merges.count),
          .columns = work.columns};
}

// Taps of a step join its values one after the other: on the device, in a copy that `mark` brings back.
void CudaBackend::tap(const Tap& tap, const AttendParams& attend, std::span<float> values) {
  flush();
  graphs_.start();
  if (tapped_.data() != values.data()) {
    CHECK(tapped_.empty());
    tapped_ = values;
    float* copy = scratch<float>(tap_values_, values.size());
    CUDA_CHECK(cudaMemcpyAsync(copy, values.data(), values.size_bytes(), cudaMemcpyHostToDevice, stream()));
  }
  const KvGroupView& view = *attend.kv.group;
  const uint32_t run = batch_.run_of_token[tap.token];
  const uint32_t row = view.group_row(run, batch_.runs[run].row_of(tap.token));
  cuda::tap(attention_params(attend),
            {.tap = tap,
             .row = row,
             .table = view.table_begin[run],
             .values = tap_values_.as<float>() + tap.at,
             .scratch = scratch<float>(tap_scratch_, tap_scratch_bytes(tap, row) / sizeof(float))},
            stream());
}

void CudaBackend::take_tapped() {
  if (tapped_.empty()) return;
  const PinnedMemory::Block block = pinned_.take(tapped_.size_bytes());
  CUDA_CHECK(cudaMemcpyAsync(block.get(), tap_values_.data(), tapped_.size_bytes(), cudaMemcpyDeviceToHost,
                             stream()));
  later([block, values = std::exchange(tapped_, {})] {
    std::memcpy(values.data(), block.get(), values.size_bytes());
  });
}

// Asked for between steps, and rarely: it waits.
void CudaBackend::expected_scores(const ExpectedScoresParams& params) {
  use_device();
  flush();
  graphs_.start();
  const KvGroupView& view = *params.kv.group;
  const KvLayerShape& shape = params.kv.layer->shape;
  const auto slot = uint32_t(params.kv.layer - view.layout->layers.data());
  const DeviceBuffer samples = DeviceBuffer::of(
      std::span<const float>(params.samples.data, params.samples.rows * params.samples.width));
  const DeviceBuffer scores(params.scores.rows * params.scores.width * sizeof(float));
  const DeviceBuffer norms(params.value_norms.rows * params.value_norms.width * sizeof(float));
  const DeviceBuffer moments(moments_bytes(params.heads, shape.query_dim()));
  const DeviceBuffer page_ids = DeviceBuffer::of(view.page_ids.subspan(view.table_begin[params.run]));
  const auto rows_of = [](const DeviceBuffer& buffer, const Rows& like) {
    return Rows{buffer.as<float>(), like.rows, like.width, like.width};
  };
  CHECK(params.scores.stride == params.scores.width && params.value_norms.stride == params.value_norms.width);
  cuda::expected_scores({.samples = rows_of(samples, params.samples),
                         .heads = params.heads,
                         .rows = paged_rows(*view.layout, slot, view.pages, view.page_count),
                         .key_format = shape.key_format,
                         .value_format = shape.value_format,
                         .page_ids = page_ids.as<uint32_t>(),
                         .row_count = params.rows,
                         .scale = params.scale,
                         .scores = rows_of(scores, params.scores),
                         .value_norms = rows_of(norms, params.value_norms),
                         .moments = moments.as<float>()},
                        stream());
  wait_for_stream();
  scores.download(params.scores.data, scores.bytes());
  norms.download(params.value_norms.data, norms.bytes());
}

void CudaBackend::route_experts(const RouteExpertsParams& params) {
  flush();
  const auto experts = uint32_t(params.router.view.rows);
  const size_t tokens = params.in.f32.rows;
  const Rows scores{scratch<float>(router_scores_, tokens * experts), tokens, experts, experts};
  launch_product({{params.router, params.bias, scores}, block_of(params.in), {}});
  route({.scores = scores,
         .choice_bias = vector_of(params.choice_bias),
         .share_scales = vector_of(params.share_scales),
         .routing = params.routing,
         .used = params.used,
         .experts = params.experts.data(),
         .shares = params.shares.data()},
        stream());
}

void CudaBackend::project_experts(const ProjectExpertsParams& params) {
  flush();
  CHECK(!params.gate || DeviceWeights::are_in_turn(params.gate, params.up));
  const ExpertStack& gate_up = weights_.experts(params.up);
  const ActivationBlock in = block_of(params.in);
  const size_t pairs = size_t(in.tokens) * params.used;
  const ExpertWorkspace::Limits limits{
      .counts = {.tokens = in.tokens, .used = params.used, .experts = gate_up.experts},
      .dim = uint32_t(params.out.width),
      .width = params.expert_width};
  if (experts_ == nullptr || !covers(experts_->limits(), limits)) {
    wait_for_stream();
    experts_ = nullptr;
    experts_ = std::make_unique<ExpertWorkspace>(limits);
  }
  cuda::project_experts(
      {.in = in,
       .experts = params.experts.data(),
       .shares = params.shares.data(),
       .used = params.used,
       .gate_up = gate_up,
       .down = weights_.experts(params.down),
       .gate_bias = vector_of(params.gate_bias),
       .up_bias = vector_of(params.up_bias),
       .down_bias = vector_of(params.down_bias),
       .function = params.function,
       .plain = params.gate ? nullptr : scratch<float>(plain_experts_, pairs * params.expert_width),
       .out = params.out},
      *experts_, stream());
}

void CudaBackend::logits(const LogitsParams& params) {
  flush();
  launch_product({{params.head, params.bias, params.out}, block_of(params.in), {}});
  scale_logits(params.out, params.scale, params.soft_cap, stream());
  logits_ = params.out;
}

void CudaBackend::sample(std::span<const SampleParams> params, std::span<SampleResult> results) {
  if (params.empty()) return;
  graphs_.start();
  CHECK(params.front().logits.data() == logits_.data);  // the i-th draws from the i-th row
  const Rows rows = logits_.first(params.size());
  if (sampler_ == nullptr || sampler_->rows() < params.size() || sampler_->vocabulary() != rows.width) {
    wait_for_stream();  // one that has draws to finish stays until then
    sampler_ = std::make_shared<Sampler>(std::bit_ceil(uint32_t(params.size())), uint32_t(rows.width));
  }
  const Sampler::Started started = sampler_->start(rows, params, pinned_, stream());
  later([sampler = sampler_, params, results, started] { sampler->finish(params, started, results); });
}

}  // namespace quire::cuda
