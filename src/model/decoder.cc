#include "model/decoder.h"

#include <cmath>
#include <utility>

#include "base/check.h"

namespace quire {

Decoder::Decoder(const ModelSpec& spec, const Weights& weights, Backend& backend, Ranks* ranks)
    : spec_(spec), weights_(weights), backend_(backend), device_(backend, spec, weights, Side::device) {
  CHECK(ranks != nullptr || spec.place.is_alone());
  if (ranks != nullptr) gather_.emplace(*ranks);
  if (weights.has_any_on(Side::host)) host_.emplace(backend, spec, weights, Side::host);
}

void Decoder::reserve(size_t tokens, size_t logit_rows) {
  device_.reserve(tokens, logit_rows);
  if (host_) host_->reserve(tokens, 0);
}

// Once for each side that has something to do in this step.
void Decoder::begin(Pass& pass) {
  Workspace& w = workspace(pass.side);
  pass.norm = {.stream = w.stream, .branch = {}, .branch_gate = {}, .rows = {}, .out = w.normed};
  if (std::exchange(pass.begun[size_t(pass.side)], true)) return;
  Backend& backend = backend_.side(pass.side);
  backend.begin_step(pass.batch, pass.kv);
  for (size_t i = 0; i < spec_.ropes.size(); ++i) {
    backend.rope_table({.cos = w.angles[i].cos,
                        .sin = w.angles[i].sin,
                        .inverse_frequencies = spec_.ropes[i].inverse_frequencies,
                        .scale = spec_.ropes[i].scale,
                        .step = spec_.ropes[i].step});
  }
}

// The row of a table and a product of the embedding, of all layers at once: each layer's part of a row is normed by itself.
void Decoder::read_layer_inputs(const Pass& pass) {
  Workspace& w = workspace(pass.side);
  Backend& backend = backend_.side(pass.side);
  const size_t width = spec_.layer_inputs.width, layers = spec_.layers.size();
  const auto parts = [&](const Rows& rows) { return Rows{rows.data, rows.rows * layers, width, width}; };
  backend.embed({.out = w.layer_inputs,
                 .table = weights_.layer_table,
                 .positions = {},
                 .scale = std::sqrt(float(width))});
  const Norm none;
  backend.norm_quantize(
      {.stream = w.stream, .branch = {}, .branch_gate = {}, .norm = &none, .rows = {}, .out = w.normed});
  const Projection projection[] = {{weights_.layer_projection, {}, w.layer_products}};
  backend.project({w.normed, projection});
  backend.norm_quantize({.stream = parts(w.layer_inputs),
                         .branch = parts(w.layer_products),
                         .branch_gate = {},
                         .branch_norm = &weights_.layer_norm,
                         .stream_scale = std::sqrt(0.5f),
                         .rows = {},
                         .out = {}});
}

void Decoder::open_streams(const Pass& pass) {
  Workspace& w = workspace(pass.side);
  Backend& backend = backend_.side(pass.side);
  const size_t dim = spec_.dim;
  const Norm none;
  backend.norm_quantize(
      {.stream = w.stream, .branch = {}, .branch_gate = {}, .norm = &none, .rows = {}, .out = w.normed});
  std::vector<Projection> projections;
  for (size_t s = 1; s < spec_.streams; ++s)
    projections.push_back({weights_.streams_in[s - 1], {}, w.streams.columns(s * dim, dim)});
  backend.project({w.normed, projections});
  backend.mix_streams({.what = MixStreamsParams::What::open,
                       .stream = w.stream,
                       .streams = w.streams,
                       .count = spec_.streams});
}

void Decoder::close_streams(Pass& pass) {
  Workspace& w = workspace(pass.side);
  Backend& backend = backend_.side(pass.side);
  const size_t dim = spec_.dim;
  add_branch(pass);
  const Norm none;
  for (size_t s = 1; s < spec_.streams; ++s) {
    const Rows own = w.streams.columns(s * dim, dim);
    backend.norm_quantize(
        {.stream = own, .branch = {}, .branch_gate = {}, .norm = &none, .rows = {}, .out = w.normed});
    const Projection projection[] = {{weights_.streams_out[s - 1], {}, own}};
    backend.project({w.normed, projection});
  }
  backend.mix_streams({.what = MixStreamsParams::What::close,
                       .stream = w.stream,
                       .streams = w.streams,
                       .count = spec_.streams});
}

void Decoder::open_connected(const Pass& pass) {
  Workspace& w = workspace(pass.side);
  backend_.side(pass.side).connect_streams({.what = ConnectStreamsParams::What::open,
                                            .stream = w.stream,
                                            .streams = w.streams,
                                            .count = spec_.hyper->count});
}

void Decoder::close_connected(Pass& pass) {
  using What = ConnectStreamsParams::What;
  Workspace& w = workspace(pass.side);
  Backend& backend = backend_.side(pass.side);
  const HyperSpec& hyper = *spec_.hyper;
  add_branch(pass);
  ConnectStreamsParams params{.what = What::give,
                              .stream = w.stream,
                              .streams = w.streams,
                              .count = hyper.count,
                              .epsilon = hyper.epsilon};
  backend.connect_streams(params);
  const Norm of_all{.kind = hyper.norm.kind, .epsilon = hyper.norm.epsilon, .weight = {}, .bias = {}};
  backend.norm_quantize({.stream = w.streams.columns(0, hyper.count * size_t(spec_.dim)),
                         .branch = {},
                         .branch_gate = {},
                         .norm = &of_all,
                         .rows = {},
                         .out = w.connected});
  const Projection routed[] = {{weights_.connection, {}, w.connection}};
  backend.project({w.connected, routed});
  params.what = What::close;
  params.routed = w.connection;
  params.scale = weights_.connection_scale;
  params.base = weights_.connection_base;
  backend.connect_streams(params);
}

void Decoder::add_branch(Pass& pass) {
  if (!pass.norm.branch) return;
  pass.norm.norm = nullptr;
  pass.norm.order = NormQuantizeParams::Order::add_then_norm;
  backend_.side(pass.side).norm_quantize(pass.norm);
  pass.norm.branch = {};
  pass.norm.stream_scale = 1;
}

void Decoder::join(const Pass& pass, std::span<const float> before) {
  Workspace& w = workspace(pass.side);
  Backend& backend = backend_.side(pass.side);
  const size_t dim = spec_.dim;
  CHECK(before.size() == w.stream.rows * dim && w.branch.stride == dim);
  backend.copy(reinterpret_cast<std::byte*>(w.branch.data), reinterpret_cast<const std::byte*>(before.data()),
               before.size_bytes());
  const auto norm_to = [&](const Rows& from, const Norm& norm, const Activation& to) {
    backend.norm_quantize(
        {.stream = from, .branch = {}, .branch_gate = {}, .norm = &norm, .rows = {}, .out = to});
  };
  const Rows both = w.joined.f32;
  const auto half = [&](size_t begin) {
    return Activation{.f32 = {both.data + begin, both.rows, dim, both.stride}, .forms = {}};
  };
  const Norm none;
  norm_to(w.stream, weights_.token_norm, half(0));
  norm_to(w.branch, weights_.result_norm, half(dim));
  norm_to(both, none, w.joined);
  const Projection projection[] = {{weights_.join, {}, w.stream}};
  backend.project({w.joined, projection});
}

// The last block's part is added first; the logits' own norm then has only the stream to read. The norm is the device's.
void Decoder::tell_hidden(Pass& pass, std::span<float> to) {
  if (pass.side != Side::device) cross(pass, Side::device);
  Workspace& w = workspace(pass.side);
  Backend& backend = backend_.side(pass.side);
  CHECK(to.size() == w.stream.rows * spec_.dim && w.branch.stride == spec_.dim);
  add_branch(pass);
  backend.norm_quantize({.stream = w.stream,
                         .branch = {},
                         .branch_gate = {},
                         .norm = &weights_.output_norm,
                         .rows = {},
                         .out = {.f32 = w.branch, .forms = {}}});
  backend.copy(reinterpret_cast<std::byte*>(to.data()), reinterpret_cast<const std::byte*>(w.branch.data),
               to.size_bytes());
}

Rows Decoder::layer_input(const Workspace& w, size_t layer) const {
  if (!w.layer_inputs) return {};
  const size_t width = spec_.layer_inputs.width;
  return {w.layer_inputs.data + layer * width, w.layer_inputs.rows, width, w.layer_inputs.stride};
}

std::span<const ColumnSums> Decoder::sums_of(size_t block, const Taps& taps) {
  sums_.clear();
  for (const ColumnTap& tap : taps.columns) {
    if (tap.block != block) continue;
    sums_.resize(weights_.blocks[block].roles.size());
    const std::span<float> values = taps.values.subspan(tap.at, tap.size());
    sums_.at(tap.role) = {values.first(tap.squares()), values.subspan(tap.squares())};
  }
  return sums_;
}

void Decoder::tap_columns(size_t block, std::span<const ColumnSums> sums) {
  const BlockWeights& weights = weights_.blocks[block];
  Workspace& w = workspace(weights.side);
  for (size_t i = 0; i < sums.size(); ++i) {
    const Role& role = weights.roles[i];
    if (sums[i].squares.empty() || role.is_stack()) continue;
    const Activation& read = role.reads == Role::kInput ? w.normed : w.scratch[block].at(role.reads);
    backend_.side(weights.side).tap_columns(read.f32, {}, sums[i]);
  }
}

// The stream's next owner is the other side. The host computes at once, so it waits for the device to come so far; the device is
// only told.
void Decoder::cross(Pass& pass, Side to) {
  add_branch(pass);
  const Rows from = workspace(pass.side).stream;
  const size_t bytes = from.rows * from.stride * sizeof(float);
  Backend& device = backend_.side(Side::device);
  device.copy(reinterpret_cast<std::byte*>(workspace(to).stream.data),
              reinterpret_cast<const std::byte*>(from.data), bytes);
  if (const Rows lent = workspace(pass.side).lent)
    device.copy(reinterpret_cast<std::byte*>(workspace(to).lent.data),
                reinterpret_cast<const std::byte*>(lent.data), lent.rows * lent.stride * sizeof(float));
  crossed_ = device.mark();
  if (to == Side::host) device.wait(crossed_);
  pass.side = to;
  begin(pass);
}

Rows Decoder::forward(const BatchView& batch, const KvLayout& layout, std::span<const KvGroupView> kv,
                      const Taps& taps, size_t layers, const HiddenStates& hidden) {
  CHECK(!batch.tokens.empty() && layout.places.size() == spec_.layers.size());
  device_.fit(batch.tokens.size(), batch.logit_rows.size());
  if (host_) {
    host_->fit(batch.tokens.size(), 0);
    backend_.wait(crossed_);  // the last step's stream may still be on its way from where this one's will be
  }
  Pass pass{.batch = batch, .kv = kv, .side = weights_.first_side()};
  begin(pass);
  backend_.side(pass.side).embed({.out = pass.norm.stream,
                                  .table = weights_.embedding,
                                  .positions = weights_.positions,
                                  .scale = spec_.embedding_scale});
  if (spec_.embedding_norm) {
    const Rows stream = pass.norm.stream;
    backend_.side(pass.side).norm_quantize({.stream = stream,
                                            .branch = {},
                                            .branch_gate = {},
                                            .norm = &weights_.embedding_norm,
                                            .rows = {},
                                            .out = {.f32 = stream, .forms = {}}});
  }
  if (weights_.layer_table) read_layer_inputs(pass);
  if (spec_.streams > 1) open_streams(pass);
  if (spec_.hyper) open_connected(pass);
  if (weights_.join) join(pass, hidden.before);

  // What a block computed waits in `branch` until the next norm adds it to the stream.
  using Order = NormQuantizeParams::Order;
  for (size_t i = 0; i < weights_.blocks.size() && weights_.blocks[i].layer < layers; ++i) {
    const BlockWeights& block = weights_.blocks[i];
    if (block.side != pass.side) cross(pass, block.side);
    Backend& backend = backend_.side(pass.side);
    Workspace& w = workspace(pass.side);
    streams_.clear();
    for (const KvLayout::Place& place : std::span(layout.places[block.layer]).subspan(block.first_stream))
      streams_.push_back({&kv[place.group], &layout.at(place)});
    pass.norm.norm = block.input == BlockInput::shared ? nullptr : &block.norm;
    pass.norm.order = block.input == BlockInput::stream_before ? Order::norm_then_add : Order::add_then_norm;
    backend.norm_quantize(pass.norm);
    const std::span<const ColumnSums> sums = sums_of(i, taps);
    block.block->forward({.backend = backend,
                          .layer = block.layer,
                          .in = w.normed,
                          .out = w.branch,
                          .out_gate = w.branch_gate,
                          .layer_input = layer_input(w, block.layer),
                          .weights = block.weights,
                          .scratch = w.scratch[i],
                          .angles = w.angles,
                          .kv = streams_,
                          .batch = batch,
                          .taps = taps,
                          .streams = w.streams,
                          .lent = w.lent,
                          .sums = sums,
                          .gather = gather_ ? &*gather_ : nullptr});
    tap_columns(i, sums);
    pass.norm.branch = w.branch;
    pass.norm.branch_gate = block.block->gates_output() ? w.branch_gate : Rows{};
    pass.norm.branch_norm = block.post_norm.kind == NormKind::none ? nullptr : &block.post_norm;
    pass.norm.branch_scale = block.residual_scale;
    pass.norm.stream_scale = block.stream_scale;
  }
  CHECK((batch.logit_rows.empty() && hidden.after.empty()) || layers >= spec_.layers.size());
  if (spec_.streams > 1 && layers >= spec_.layers.size()) close_streams(pass);
  if (spec_.hyper && layers >= spec_.layers.size()) close_connected(pass);
  if (!hidden.after.empty()) tell_hidden(pass, hidden.after);
  if (batch.logit_rows.empty()) return device_.logits;
  if (pass.side != Side::device) cross(pass, Side::device);
  pass.norm.norm = &weights_.output_norm;
  pass.norm.order = Order::add_then_norm;
  pass.norm.rows = batch.logit_rows;
  pass.norm.out = device_.final;
  Backend& device = backend_.side(Side::device);
  device.norm_quantize(pass.norm);
  const RowShare own = rows_of(spec_.vocab, spec_.place);
  device.logits({.in = device_.final,
                 .head = weights_.head,
                 .bias = weights_.head_bias,
                 .scale = spec_.logit_scale,
                 .soft_cap = spec_.logit_soft_cap,
                 .out = device_.logits.columns(own.begin, own.count)});
  if (gather_) gather_->gather_rows_of_product(device_.logits, Ranks::To::first);
  return device_.logits;
}

void Decoder::expect(const Expectation& expectation, const KvLayout& layout, std::span<const KvGroupView> kv,
                     std::span<float> values) {
  const KvLayout::Place place = layout.places[expectation.layer].front();
  const KvLayerLayout& layer = layout.at(place);
  const GqaSpec& gqa = spec_.layers[expectation.layer].gqa();
  const size_t width = size_t(gqa.heads) * layer.shape.query_dim(), rows = expectation.rows;
  backend_.side(layer.shape.side)
      .expected_scores({.samples = {&values[expectation.samples_at], expectation.samples, width, width},
                        .heads = gqa.heads,
                        .kv = {&kv[place.group], &layer},
                        .scale = gqa.scale,
                        .run = expectation.run,
                        .rows = expectation.rows,
                        .scores = {&values[expectation.scores_at], gqa.heads, rows, rows},
                        .value_norms = {&values[expectation.norms_at], layer.shape.kv_heads, rows, rows}});
}

}  // namespace quire
