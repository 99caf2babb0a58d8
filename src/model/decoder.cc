#include "model/decoder.h"

#include "base/check.h"

namespace quire {

Decoder::Decoder(const ModelSpec& spec, const Weights& weights, Backend& backend)
    : spec_(spec), weights_(weights), backend_(backend), workspace_(backend, spec, weights) {}

Rows Decoder::forward(const BatchView& batch, const KvLayout& layout, std::span<const KvGroupView> kv,
                      const Taps& taps, size_t layers) {
  CHECK(!batch.tokens.empty() && layout.places.size() == spec_.layers.size());
  Workspace& w = workspace_;
  w.fit(batch.tokens.size(), batch.logit_rows.size());
  backend_.begin_step(batch, kv);
  for (size_t i = 0; i < spec_.ropes.size(); ++i) {
    backend_.rope_table({.cos = w.angles[i].cos,
                         .sin = w.angles[i].sin,
                         .inverse_frequencies = spec_.ropes[i].inverse_frequencies,
                         .scale = spec_.ropes[i].scale});
  }
  backend_.embed({.out = w.stream,
                  .table = weights_.embedding,
                  .positions = weights_.positions,
                  .scale = spec_.embedding_scale});

  // What a block computed waits in `branch` until the next norm adds it to the stream.
  using Order = NormQuantizeParams::Order;
  NormQuantizeParams norm{.stream = w.stream, .branch = {}, .branch_gate = {}, .rows = {}, .out = w.normed};
  for (size_t i = 0; i < weights_.blocks.size() && weights_.blocks[i].layer < layers; ++i) {
    const BlockWeights& block = weights_.blocks[i];
    streams_.clear();
    for (const KvLayout::Place& place : layout.places[block.layer])
      streams_.push_back({&kv[place.group], &layout.at(place)});
    norm.norm = block.input == BlockInput::shared ? nullptr : &block.norm;
    norm.order = block.input == BlockInput::stream_before ? Order::norm_then_add : Order::add_then_norm;
    backend_.norm_quantize(norm);
    block.block->forward({.backend = backend_,
                          .layer = block.layer,
                          .in = w.normed,
                          .out = w.branch,
                          .out_gate = w.branch_gate,
                          .weights = block.weights,
                          .scratch = w.scratch[i],
                          .angles = w.angles,
                          .kv = streams_,
                          .batch = batch,
                          .taps = taps});
    norm.branch = w.branch;
    norm.branch_gate = block.block->gates_output() ? w.branch_gate : Rows{};
    norm.branch_norm = block.post_norm.kind == NormKind::none ? nullptr : &block.post_norm;
    norm.branch_scale = block.residual_scale;
  }
  CHECK(batch.logit_rows.empty() || layers >= spec_.layers.size());
  if (batch.logit_rows.empty()) return w.logits;
  norm.norm = &weights_.output_norm;
  norm.order = Order::add_then_norm;
  norm.rows = batch.logit_rows;
  norm.out = w.final;
  backend_.norm_quantize(norm);
  backend_.logits({.in = w.final,
                   .head = weights_.head,
                   .bias = weights_.head_bias,
                   .scale = spec_.logit_scale,
                   .soft_cap = spec_.logit_soft_cap,
                   .out = w.logits});
  return w.logits;
}

void Decoder::expect(const Expectation& expectation, const KvLayout& layout, std::span<const KvGroupView> kv,
                     std::span<float> values) {
  const KvLayout::Place place = layout.places[expectation.layer].front();
  const KvLayerLayout& layer = layout.at(place);
  const GqaSpec& gqa = spec_.layers[expectation.layer].gqa();
  const size_t width = size_t(gqa.heads) * gqa.key_dim, rows = expectation.rows;
  backend_.expected_scores(
      {.samples = {&values[expectation.samples_at], expectation.samples, width, width},
       .heads = gqa.heads,
       .kv = {&kv[place.group], &layer},
       .scale = gqa.scale,
       .run = expectation.run,
       .rows = expectation.rows,
       .scores = {&values[expectation.scores_at], gqa.heads, rows, rows},
       .value_norms = {&values[expectation.norms_at], layer.shape.kv_heads, rows, rows}});
}

}  // namespace quire
