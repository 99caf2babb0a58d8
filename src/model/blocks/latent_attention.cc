#include "model/blocks/latent_attention.h"

#include <algorithm>

#include "base/check.h"

namespace quire {
namespace {

class LatentBlock : public Block {
 public:
  LatentBlock(const LatentSpec& spec, uint32_t dim)
      : spec_(spec),
        dim_(dim),
        heads_(spec.attention.heads),
        rotated_(spec.attention.key_dim),
        latent_(spec.attention.value_dim) {
    CHECK(spec.attention.kv_heads == 1);
  }

  std::vector<Role> roles() const override;
  std::vector<size_t> scratch() const override {
    std::vector<size_t> rows = {spec_.query_rank,
                                heads_ * (spec_.plain_dim + rotated_),
                                latent_ + rotated_,
                                latent_,
                                heads_ * (rotated_ + latent_),
                                heads_ * latent_,
                                heads_ * spec_.value_dim};
    if (has_index()) {
      const size_t dim = spec_.index->key_dim;
      const size_t chosen = spec_.index->is_lent ? 0 : spec_.index->most;
      for (const size_t width : {spec_.index->heads * dim, dim, dim, size_t(spec_.index->heads), chosen})
        rows.push_back(width);
    }
    return rows;
  }
  KvLayer cached() const override {
    KvLayer streams = {
        {.kv_heads = 1, .key_dim = uint32_t(rotated_), .value_dim = uint32_t(latent_), .key_goes_on = true}};
    if (has_index()) streams.push_back({.kv_heads = 1, .key_dim = spec_.index->key_dim});
    return streams;
  }
  size_t lent_rows() const override { return spec_.index && spec_.index->is_lent ? spec_.index->most : 0; }
  StepCost cost(const StepShape& shape, std::span<const KvLayerLayout* const> streams) const override;
  void forward(const BlockStep& step) const override;

 private:
  enum : size_t {  // roles
    kQueryLatent,
    kQuery,
    kLatent,
    kKeys,
    kValues,
    kOut,
    kQueryLatentBias,
    kLatentBias,
    kOutBias,
    kQueryNorm,
    kQueryNormBias,
    kLatentNorm,
    kLatentNormBias,
    kIndexQuery,  // these, if there is an index
    kIndexKey,
    kIndexWeights,
    kIndexNorm,
    kIndexNormBias
  };
  enum : uint8_t {  // scratch
    kQueryLatentRows,
    kQueryRows,     // [heads, plain and rotated]
    kLatentRows,    // latent and rotated, as the matrix gives them
    kNormedRows,    // latent
    kAskingRows,    // [heads, rotated and latent]
    kAttendedRows,  // [heads, latent]
    kValueRows,
    kIndexQueryRows,  // [heads of the index, key_dim]
    kIndexKeyRows,    // as the matrix gives them
    kIndexNormedRows,
    kIndexWeightRows,
    kChosenRows  // numbers of rows
  };

  bool has_index() const { return spec_.index && !spec_.index->is_shared; }
  void make_queries(const BlockStep& step, const Rows& latent) const;
  void choose_rows(const BlockStep& step, AttendParams& attend) const;
  Norm norm(const BlockStep& step, size_t weight) const { return norm_of(step, spec_.norm, weight); }
  static Norm norm_of(const BlockStep& step, const NormSpec& spec, size_t weight) {
    return {spec.kind, spec.epsilon, step.weights[weight], step.weights[weight + 1]};
  }

  LatentSpec spec_;
  uint64_t dim_;
  size_t heads_, rotated_, latent_;
};

std::vector<Role> LatentBlock::roles() const {
  const bool ranked = spec_.query_rank > 0;
  const Presence of_rank = ranked ? Presence::required : Presence::absent;
  const uint64_t asked = heads_ * (spec_.plain_dim + rotated_), both = spec_.plain_dim + spec_.value_dim;
  const auto of_heads = [&](const char* name, const char* tensor, uint64_t rows, uint64_t cols) -> Role {
    return {.name = name,
            .tensor = tensor,
            .shape = {heads_, rows, cols},
            .reads = Role::kInside,
            .used = uint32_t(heads_)};
  };
  std::vector<Role> roles = {
      {.name = "query latent",
       .tensor = "attn_q_a.weight",
       .shape = {spec_.query_rank, dim_},
       .presence = of_rank},
      {.name = "query",
       .tensor = ranked ? "attn_q_b.weight" : "attn_q.weight",
       .shape = {asked, ranked ? spec_.query_rank : dim_},
       .reads = ranked ? uint8_t(kQueryLatentRows) : Role::kInput},
      {.name = "latent", .tensor = "attn_kv_a_mqa.weight", .shape = {latent_ + rotated_, dim_}},
      of_heads("keys of heads", "attn_k_b.weight", latent_, spec_.plain_dim),
      of_heads("values of heads", "attn_v_b.weight", spec_.value_dim, latent_),
      {.name = "attention out",
       .tensor = "attn_output.weight",
       .shape = {dim_, heads_ * spec_.value_dim},
       .reads = kValueRows},
      vector_role("query latent bias", "attn_q_a.bias", spec_.query_rank,
                  ranked ? Presence::optional : Presence::absent),
      vector_role("latent bias", "attn_kv_a_mqa.bias", latent_ + rotated_),
      vector_role("attention out bias", "attn_output.bias", dim_)};
  // Older files have both in one, head by head, and keys the other way round.
  roles[kKeys].part = {"attn_k_b.weight", "attn_kv_b.weight", 0, both};
  roles[kKeys].part.transposed = true;
  roles[kValues].part = {"attn_v_b.weight", "attn_kv_b.weight", spec_.plain_dim, both};
  roles[kKeys].part.flat = roles[kValues].part.flat = true;
  for (Role& role : norm_roles("query latent norm", "attn_q_a_norm", spec_.query_rank, of_rank))
    roles.push_back(std::move(role));
  for (Role& role : norm_roles("latent norm", "attn_kv_a_norm", latent_)) roles.push_back(std::move(role));
  if (!has_index()) return roles;
  const uint64_t index_heads = spec_.index->heads, index_dim = spec_.index->key_dim;
  roles.push_back({.name = "queries of the index",
                   .tensor = "indexer.attn_q_b.weight",
                   .shape = {index_heads * index_dim, spec_.query_rank},
                   .reads = kQueryLatentRows});
  roles.push_back(
      {.name = "keys of the index", .tensor = "indexer.attn_k.weight", .shape = {index_dim, dim_}});
  roles.push_back(
      {.name = "weights of the index", .tensor = "indexer.proj.weight", .shape = {index_heads, dim_}});
  for (Role& role : norm_roles("norm of the index", "indexer.k_norm", index_dim))
    roles.push_back(std::move(role));
  return roles;
}

StepCost LatentBlock::cost(const StepShape& shape, std::span<const KvLayerLayout* const> streams) const {
  const double end = double(shape.depth) + shape.tokens;
  const double visible = (double(shape.depth) + 1 + end) / 2 * shape.tokens;  // pairs of tokens
  const double row_bytes = double(streams[0]->key_row_bytes + streams[0]->value_row_bytes);
  const double pair_ops = 2 * double(heads_) * double(rotated_ + 2 * latent_);
  StepCost cost;
  if (!spec_.index || end <= double(spec_.index->most)) {
    cost.f32_ops = shape.sequences * visible * pair_ops;
    cost.kv_bytes = shape.sequences * end * row_bytes;
    if (!spec_.index) return cost;
  } else {
    // Every token attends to rows of its own.
    double attended = 0;
    for (uint32_t t = 0; t < shape.tokens; ++t)
      attended += std::min(double(shape.depth) + t + 1, double(spec_.index->most));
    cost.f32_ops = shape.sequences * attended * pair_ops;
    cost.kv_bytes = shape.sequences * attended * row_bytes;
    if (!has_index()) return cost;
    cost.f32_ops += shape.sequences * visible * 2 * double(spec_.index->heads) * double(spec_.index->key_dim);
    cost.kv_bytes += shape.sequences * end * double(streams[1]->key_row_bytes);
  }
  return cost;
}

// A query's plain part becomes what asks for latents.
void LatentBlock::make_queries(const BlockStep& step, const Rows& latent) const {
  const auto& w = step.weights;
  const Rows query = step.scratch[kQueryRows].f32;
  if (spec_.query_rank == 0) {
    const Projection both[] = {{w[kQuery], {}, query}, {w[kLatent], w[kLatentBias], latent}};
    step.backend.project({step.in, both});
  } else {
    const Activation& ranked = step.scratch[kQueryLatentRows];
    const Projection both[] = {{w[kQueryLatent], w[kQueryLatentBias], ranked.f32},
                               {w[kLatent], w[kLatentBias], latent}};
    step.backend.project({step.in, both});
    const Norm query_norm = norm(step, kQueryNorm);
    step.backend.norm_quantize({.stream = ranked.f32,
                                .branch = {},
                                .branch_gate = {},
                                .norm = &query_norm,
                                .rows = {},
                                .out = ranked});
    const Projection up[] = {{w[kQuery], {}, query},
                             {has_index() ? w[kIndexQuery] : Weight(),
                              {},
                              has_index() ? step.scratch[kIndexQueryRows].f32 : Rows()}};
    step.backend.project({ranked, std::span(up).first(has_index() ? 2 : 1)});
  }
  step.backend.project_heads(
      {.in = query, .heads = uint32_t(heads_), .weight = w[kKeys], .out = step.scratch[kAskingRows]});
}

// REQUIRES: what queries are made of is there.
void LatentBlock::choose_rows(const BlockStep& step, AttendParams& attend) const {
  const RowIndexSpec& index = *spec_.index;
  const Rows& kept = index.is_shared || index.is_lent ? step.lent : step.scratch[kChosenRows].f32;
  const std::span rows(reinterpret_cast<uint32_t*>(kept.data), kept.rows * index.most);
  attend.chosen = rows;
  attend.most = index.most;
  if (index.is_shared) return;
  const auto& w = step.weights;
  const Rows key = step.scratch[kIndexKeyRows].f32, weights = step.scratch[kIndexWeightRows].f32;
  const Projection both[] = {{w[kIndexKey], {}, key}, {w[kIndexWeights], {}, weights}};
  step.backend.project({step.in, both});
  const Norm key_norm = norm_of(step, spec_.index->norm, kIndexNorm);
  step.backend.norm_quantize({.stream = key,
                              .branch = {},
                              .branch_gate = {},
                              .norm = &key_norm,
                              .rows = {},
                              .out = step.scratch[kIndexNormedRows]});
  const RopeAngles& angles = step.angles[*spec_.attention.rope];
  const Rows query = step.scratch[kIndexQueryRows].f32;
  step.backend.rope_store({.query = query,
                           .key = step.scratch[kIndexNormedRows].f32,
                           .value = {},
                           .head_dim = spec_.index->key_dim,
                           .cos = angles.cos,
                           .sin = angles.sin,
                           .pairing = spec_.index->pairing,
                           .kv = step.kv[1]});
  step.backend.choose_rows({.query = query,
                            .weights = weights,
                            .heads = spec_.index->heads,
                            .kv = step.kv[1],
                            .most = spec_.index->most,
                            .chosen = rows});
}

void LatentBlock::forward(const BlockStep& step) const {
  const auto& w = step.weights;
  const Rows both = step.scratch[kLatentRows].f32, asking = step.scratch[kAskingRows].f32;
  make_queries(step, both);

  const Norm latent_norm = norm(step, kLatentNorm);
  step.backend.norm_quantize({.stream = {both.data, both.rows, latent_, both.stride},
                              .branch = {},
                              .branch_gate = {},
                              .norm = &latent_norm,
                              .rows = {},
                              .out = step.scratch[kNormedRows]});
  RopeStoreParams rope{.query = asking,
                       .key = {both.data + latent_, both.rows, rotated_, both.stride},
                       .value = step.scratch[kNormedRows].f32,
                       .head_dim = uint32_t(rotated_ + latent_),
                       .cos = {},
                       .sin = {},
                       .temperature = spec_.attention.temperature,
                       .kv = step.kv[0]};
  if (spec_.attention.rope) {
    const RopeAngles& angles = step.angles[*spec_.attention.rope];
    rope.cos = angles.cos;
    rope.sin = angles.sin;
    rope.pairing = angles.pairing;
  }
  step.backend.rope_store(rope);

  AttendParams attend{.query = asking,
                      .heads = uint32_t(heads_),
                      .kv = step.kv[0],
                      .scale = spec_.attention.scale,
                      .sinks = {},
                      .out = step.scratch[kAttendedRows]};
  if (spec_.index) choose_rows(step, attend);
  for (const Tap& tap : step.taps.list) {
    if (tap.layer == step.layer) step.backend.tap(tap, attend, step.taps.values);
  }
  step.backend.attend(attend);
  step.backend.project_heads({.in = step.scratch[kAttendedRows].f32,
                              .heads = uint32_t(heads_),
                              .weight = w[kValues],
                              .out = step.scratch[kValueRows]});
  const Projection out[] = {{w[kOut], w[kOutBias], step.out}};
  step.backend.project({step.scratch[kValueRows], out});
}

}  // namespace

BlockPtr make_block(const LatentSpec& spec, uint32_t dim) {
  return std::make_shared<LatentBlock>(spec, dim);
}

}  // namespace quire
