#include "model/decoder.h"

#include <algorithm>

#include "base/check.h"

namespace quire {

Decoder::Decoder(const ModelSpec& spec, const Weights& weights, Backend& backend)
    : spec_(spec), weights_(weights), backend_(backend), workspace_(backend, spec, weights) {}

Rows Decoder::forward(const BatchView& batch, const KvLayout& layout, std::span<const KvGroupView> kv,
                      const Taps& taps, size_t layers) {
  CHECK(!batch.tokens.empty() && layout.places.size() == spec_.layers.size());
  Workspace& w = workspace_;
  w.fit(batch.tokens.size(), batch.logit_rows.size());
  backend_.begin_step(batch);
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
  NormQuantizeParams norm{
      .stream = w.stream, .branch = {}, .branch_scale = spec_.residual_scale, .rows = {}, .out = {}};
  norm.out = w.normed;
  for (size_t i = 0; i < std::min(layers, spec_.layers.size()); ++i) {
    const LayerWeights& layer = weights_.layers[i];
    const KvLayout::Place place = layout.places[i];
    const KvView view{&kv[place.group], &layout.groups[place.group].layers[place.slot]};

    norm.norm = spec_.pre_norms ? &layer.attention_norm : &no_norm_;
    backend_.norm_quantize(norm);
    attention(i, view, taps);
    norm.branch = w.branch;

    norm.branch_norm = spec_.post_norms ? &layer.attention_post_norm : nullptr;
    norm.norm = spec_.pre_norms ? &layer.mlp_norm : &no_norm_;
    backend_.norm_quantize(norm);
    mlp(layer);
    norm.branch_norm = spec_.post_norms ? &layer.mlp_post_norm : nullptr;
  }
  CHECK(batch.logit_rows.empty() || layers >= spec_.layers.size());
  if (batch.logit_rows.empty()) return w.logits;
  norm.norm = &weights_.output_norm;
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

void Decoder::attention(size_t index, const KvView& kv, const Taps& taps) {
  Workspace& w = workspace_;
  const LayerWeights& weights = weights_.layers[index];
  const LayerSpec& layer = spec_.layers[index];
  const Projection projections[] = {{weights.query, weights.query_bias, w.query},
                                    {weights.key, weights.key_bias, w.key},
                                    {weights.value, weights.value_bias, w.value}};
  backend_.project({w.normed, projections});
  const bool norms = spec_.query_key_norm != QueryKeyNorm::none;
  RopeStoreParams rope{.query = w.query,
                       .key = w.key,
                       .value = w.value,
                       .head_dim = spec_.key_dim,
                       .query_norm = norms ? &weights.query_norm : nullptr,
                       .key_norm = norms ? &weights.key_norm : nullptr,
                       .cos = {},
                       .sin = {},
                       .kv = kv};
  if (layer.rope) {
    rope.cos = w.angles[*layer.rope].cos;
    rope.sin = w.angles[*layer.rope].sin;
    rope.pairing = spec_.ropes[*layer.rope].pairing;
  }
  backend_.rope_store(rope);
  const AttendParams attend{.query = w.query,
                            .heads = spec_.heads,
                            .kv = kv,
                            .scale = spec_.attention_scale,
                            .soft_cap = spec_.attention_soft_cap,
                            .sinks = weights.sinks,
                            .out = w.attended};
  for (const Tap& tap : taps.list) {
    if (tap.layer == index) backend_.tap(tap, attend, taps.values);
  }
  backend_.attend(attend);
  const Projection out[] = {{weights.attention_out, weights.attention_out_bias, w.branch}};
  backend_.project({w.attended, out});
}

void Decoder::expect(const Expectation& expectation, const KvLayout& layout, std::span<const KvGroupView> kv,
                     std::span<float> values) {
  const KvLayout::Place place = layout.places[expectation.layer];
  const KvLayerLayout& layer = layout.groups[place.group].layers[place.slot];
  const size_t width = size_t(spec_.heads) * spec_.key_dim, rows = expectation.rows;
  backend_.expected_scores(
      {.samples = {&values[expectation.samples_at], expectation.samples, width, width},
       .heads = spec_.heads,
       .kv = {&kv[place.group], &layer},
       .scale = spec_.attention_scale,
       .run = expectation.run,
       .rows = expectation.rows,
       .scores = {&values[expectation.scores_at], spec_.heads, rows, rows},
       .value_norms = {&values[expectation.norms_at], layer.shape.kv_heads, rows, rows}});
}

void Decoder::mlp(const LayerWeights& weights) {
  if (spec_.experts.count > 0) {
    expert_mlp(weights);
  } else {
    dense_mlp(weights);
  }
}

void Decoder::dense_mlp(const LayerWeights& weights) {
  Workspace& w = workspace_;
  const Projection projections[] = {{weights.gate, weights.gate_bias, w.gate},
                                    {weights.up, weights.up_bias, w.up}};
  backend_.project({w.normed, std::span(projections).first(spec_.gated_mlp ? 2 : 1)});
  backend_.activate(
      {.gate = w.gate, .up = spec_.gated_mlp ? w.up : Rows{}, .function = spec_.gate, .out = w.hidden});
  const Projection down[] = {{weights.down, weights.down_bias, w.branch}};
  backend_.project({w.hidden, down});
}

void Decoder::expert_mlp(const LayerWeights& weights) {
  Workspace& w = workspace_;
  const size_t choices = w.normed.f32.rows * spec_.experts.used;
  const std::span<uint32_t> experts = std::span(w.experts).first(choices);
  const std::span<float> shares = std::span(w.expert_shares).first(choices);
  backend_.route_experts({.in = w.normed,
                          .router = weights.router,
                          .bias = weights.router_bias,
                          .routing = spec_.experts.routing,
                          .used = spec_.experts.used,
                          .experts = experts,
                          .shares = shares});
  backend_.project_experts({.in = w.normed,
                            .experts = experts,
                            .shares = shares,
                            .used = spec_.experts.used,
                            .expert_width = spec_.experts.width,
                            .gate = weights.gate,
                            .up = weights.up,
                            .down = weights.down,
                            .gate_bias = weights.gate_bias,
                            .up_bias = weights.up_bias,
                            .down_bias = weights.down_bias,
                            .function = spec_.gate,
                            .out = w.branch});
}

}  // namespace quire
