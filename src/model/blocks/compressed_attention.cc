#include "model/blocks/compressed_attention.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace quire {
namespace {

class CompressedBlock : public Block {
 public:
  CompressedBlock(const CompressedSpec& spec, uint32_t dim)
      : spec_(spec), dim_(dim), all_(size_t(spec.heads) * spec.head_dim), parts_(spec.overlaps ? 2 : 1) {
    CHECK(spec.groups > 0 && all_ % spec.groups == 0);
    CHECK(!spec.index || (spec.stride > 0 && spec.overlaps));
  }

  std::vector<Role> roles() const override;
  std::vector<size_t> scratch() const override;
  KvLayer cached() const override;
  StepCost cost(const StepShape& shape, std::span<const KvLayerLayout* const> streams) const override;
  void forward(const BlockStep& step) const override;

 private:
  enum : size_t {  // roles
    kQueryLatent,
    kQuery,
    kRow,
    kGroups,
    kOut,
    kQueryNorm,
    kRowNorm,
    kSinks,
    kInputs,  // these, if there are rows of several tokens
    kGates,
    kBias,
    kInputNorm,
    kIndexQuery,  // and these, if there is an index
    kIndexWeights,
    kIndexInputs,
    kIndexGates,
    kIndexBias,
    kIndexNorm
  };
  enum : uint8_t {  // scratch
    kQueryLatentRows,
    kQueryRows,  // [heads, head_dim]
    kRowRows,
    kAttendedRows,  // [heads, head_dim]
    kGroupRows,     // [groups, group_rank]
    kInputRows,     // what rows of several tokens are made of
    kGateRows,
    kIndexQueryRows,  // [heads of the index, key_dim]
    kIndexWeightRows,
    kIndexInputRows,
    kIndexGateRows,
    kChosenRows  // numbers of rows
  };
  enum : size_t { kOwn, kRows, kMadeOf, kIndexRows, kIndexMadeOf };  // streams

  Norm norm(const BlockStep& step, size_t weight) const {
    return {spec_.norm.kind, spec_.norm.epsilon, step.weights[weight], {}};
  }
  void project(const BlockStep& step) const;
  void rotate(const BlockStep& step, const Rows& rows, uint32_t head_dim, RotateHeadsParams::Turn turn) const;
  void compress(const BlockStep& step, size_t first_role, uint8_t first_scratch, size_t first_stream) const;
  void choose_rows(const BlockStep& step, AttendParams& attend) const;

  CompressedSpec spec_;
  uint64_t dim_;
  size_t all_;  // values of all heads
  size_t parts_;
};

std::vector<Role> CompressedBlock::roles() const {
  const uint64_t dim = spec_.head_dim, rank = spec_.query_rank, of_group = all_ / spec_.groups;
  std::vector<Role> roles = {
      {.name = "query latent", .tensor = "attn_q_a.weight", .shape = {rank, dim_}},
      {.name = "query", .tensor = "attn_q_b.weight", .shape = {all_, rank}, .reads = kQueryLatentRows},
      {.name = "key and value", .tensor = "attn_kv.weight", .shape = {dim, dim_}},
      {.name = "attention out of groups",
       .tensor = "attn_output_a.weight",
       .shape = {spec_.groups, spec_.group_rank, of_group},
       .reads = Role::kInside,
       .used = spec_.groups},
      {.name = "attention out",
       .tensor = "attn_output_b.weight",
       .shape = {dim_, uint64_t(spec_.groups) * spec_.group_rank},
       .reads = kGroupRows},
      vector_role("query latent norm", "attn_q_a_norm.weight", rank, Presence::required),
      vector_role("row norm", "attn_kv_a_norm.weight", dim, Presence::required),
      vector_role("sinks", "attn_sinks.weight", spec_.heads, Presence::required)};
  // What makes rows of several tokens: of so many values each.
  const auto add_compressor = [&](const std::string& name, const std::string& tensor, uint64_t width) {
    roles.push_back(
        {.name = name + " inputs", .tensor = tensor + "_kv.weight", .shape = {parts_ * width, dim_}});
    roles.push_back(
        {.name = name + " gates", .tensor = tensor + "_gate.weight", .shape = {parts_ * width, dim_}});
    roles.push_back({.name = name + " biases",
                     .tensor = tensor + "_ape.weight",
                     .shape = {spec_.stride, parts_ * width},
                     .kind = RoleKind::vector});
    roles.push_back(vector_role(name + " norm", tensor + "_norm.weight", width, Presence::required));
  };
  if (spec_.stride > 0) add_compressor("compressed", "attn_compressor", dim);
  if (!spec_.index) return roles;
  const uint64_t heads = spec_.index->heads, index_dim = spec_.index->key_dim;
  roles.push_back({.name = "queries of the index",
                   .tensor = "indexer.attn_q_b.weight",
                   .shape = {heads * index_dim, rank},
                   .reads = kQueryLatentRows});
  roles.push_back({.name = "weights of the index", .tensor = "indexer.proj.weight", .shape = {heads, dim_}});
  add_compressor("index", "indexer_compressor", index_dim);
  return roles;
}

std::vector<size_t> CompressedBlock::scratch() const {
  std::vector<size_t> widths = {spec_.query_rank, all_, spec_.head_dim, all_,
                                size_t(spec_.groups) * spec_.group_rank};
  if (spec_.stride == 0) return widths;
  widths.insert(widths.end(), 2, parts_ * spec_.head_dim);
  if (!spec_.index) return widths;
  const size_t heads = spec_.index->heads, index_dim = spec_.index->key_dim;
  for (const size_t width :
       {heads * index_dim, heads, parts_ * index_dim, parts_ * index_dim, size_t(spec_.index->most)})
    widths.push_back(width);
  return widths;
}

// A row is written with the last of its tokens, of what a window has kept of all of them. So nothing else has to know of it, and a sequence
// goes on anywhere.
KvLayer CompressedBlock::cached() const {
  const auto inputs = [&](uint32_t width) {
    const uint32_t seen = uint32_t(parts_) * spec_.stride, wide = uint32_t(parts_) * width;
    return KvStream{.kv_heads = 1,
                    .key_dim = wide,
                    .value_dim = wide,
                    .window = seen,
                    .page_tokens = std::min(seen, kPageTokens),
                    .key_format = KvFormat::f32,
                    .value_format = KvFormat::f32,
                    .own_format = true};
  };
  KvLayer streams = {
      {.kv_heads = 1, .value_dim = spec_.head_dim, .window = spec_.window, .key_goes_on = true}};
  if (spec_.stride == 0) return streams;
  streams.push_back({.kv_heads = 1,
                     .value_dim = spec_.head_dim,
                     .page_tokens = spec_.page_tokens,
                     .key_goes_on = true,
                     .stride = spec_.stride});
  streams.push_back(inputs(spec_.head_dim));
  if (!spec_.index) return streams;
  streams.push_back({.kv_heads = 1,
                     .key_dim = spec_.index->key_dim,
                     .page_tokens = spec_.page_tokens,
                     .stride = spec_.stride});
  streams.push_back(inputs(spec_.index->key_dim));
  return streams;
}

StepCost CompressedBlock::cost(const StepShape& shape, std::span<const KvLayerLayout* const> streams) const {
  double attended = 0, scored = 0, rows = 0;  // pairs of a token and a row; rows that are read
  for (uint32_t t = 0; t < shape.tokens; ++t) {
    const double seen = double(shape.depth) + t + 1;
    attended += std::min(seen, double(spec_.window));
    if (spec_.stride == 0) continue;
    const double all = std::floor(seen / spec_.stride);
    attended += spec_.index ? std::min(all, double(spec_.index->most)) : all;
    if (spec_.index) scored += all;
    rows = all;
  }
  StepCost cost;
  cost.f32_ops = shape.sequences * attended * 4 * double(all_);
  cost.kv_bytes = shape.sequences * std::min(double(shape.depth) + shape.tokens, double(spec_.window)) *
                  double(streams[kOwn]->value_row_bytes);
  if (spec_.stride == 0) return cost;
  if (spec_.index) {
    cost.f32_ops += shape.sequences * scored * 2 * double(spec_.index->heads) * double(spec_.index->key_dim);
    cost.kv_bytes += shape.sequences * rows * double(streams[kIndexRows]->key_row_bytes);
    rows = std::min(rows, double(spec_.index->most)) * shape.tokens;
  }
  cost.kv_bytes += shape.sequences * rows * double(streams[kRows]->value_row_bytes);
  return cost;
}

void CompressedBlock::project(const BlockStep& step) const {
  const auto& w = step.weights;
  const auto out = [&](uint8_t scratch) { return step.scratch[scratch].f32; };
  std::vector<Projection> products = {{w[kQueryLatent], {}, out(kQueryLatentRows)},
                                      {w[kRow], {}, out(kRowRows)}};
  if (spec_.stride > 0) {
    products.push_back({w[kInputs], {}, out(kInputRows)});
    products.push_back({w[kGates], {}, out(kGateRows)});
  }
  if (spec_.index) {
    products.push_back({w[kIndexInputs], {}, out(kIndexInputRows)});
    products.push_back({w[kIndexGates], {}, out(kIndexGateRows)});
    products.push_back({w[kIndexWeights], {}, out(kIndexWeightRows)});
  }
  step.backend.project({step.in, products});
  const Activation& latent = step.scratch[kQueryLatentRows];
  const Norm query_norm = norm(step, kQueryNorm);
  step.backend.norm_quantize({.stream = latent.f32,
                              .branch = {},
                              .branch_gate = {},
                              .norm = &query_norm,
                              .rows = {},
                              .out = latent});
  std::vector<Projection> up = {{w[kQuery], {}, out(kQueryRows)}};
  if (spec_.index) up.push_back({w[kIndexQuery], {}, out(kIndexQueryRows)});
  step.backend.project({latent, up});
}

void CompressedBlock::rotate(const BlockStep& step, const Rows& rows, uint32_t head_dim,
                             RotateHeadsParams::Turn turn) const {
  const RopeAngles& angles = step.angles[spec_.rope];
  step.backend.rotate_heads({.rows = rows,
                             .head_dim = head_dim,
                             .first = head_dim - 2 * uint32_t(angles.cos.width),
                             .cos = angles.cos,
                             .sin = angles.sin,
                             .pairing = angles.pairing,
                             .turn = turn});
}

// Keeps what rows are made of, and makes those whose last token is among these.
void CompressedBlock::compress(const BlockStep& step, size_t first_role, uint8_t first_scratch,
                               size_t first_stream) const {
  const KvView &made = step.kv[first_stream], &made_of = step.kv[first_stream + 1];
  const Rows inputs = step.scratch[first_scratch].f32, gates = step.scratch[first_scratch + 1].f32;
  step.backend.rope_store({.query = {inputs.data, inputs.rows, 0, inputs.stride},
                           .key = inputs,
                           .value = gates,
                           .head_dim = uint32_t(inputs.width),
                           .cos = {},
                           .sin = {},
                           .kv = made_of});
  const RopeAngles& angles = step.angles[spec_.row_rope];
  step.backend.compress_rows({.inputs = made_of,
                              .bias = step.weights[first_role + (kBias - kInputs)],
                              .norm = norm(step, first_role + (kInputNorm - kInputs)),
                              .cos = angles.cos,
                              .sin = angles.sin,
                              .pairing = angles.pairing,
                              .kv = made});
}

void CompressedBlock::choose_rows(const BlockStep& step, AttendParams& attend) const {
  const Rows query = step.scratch[kIndexQueryRows].f32, chosen = step.scratch[kChosenRows].f32;
  rotate(step, query, spec_.index->key_dim, RotateHeadsParams::Turn::forth);
  // As the keys are kept.
  step.backend.rope_store({.query = query,
                           .key = {},
                           .value = {},
                           .head_dim = spec_.index->key_dim,
                           .cos = {},
                           .sin = {},
                           .kv = step.kv[kIndexRows]});
  const std::span rows(reinterpret_cast<uint32_t*>(chosen.data), chosen.rows * spec_.index->most);
  step.backend.choose_rows({.query = query,
                            .weights = step.scratch[kIndexWeightRows].f32,
                            .heads = spec_.index->heads,
                            .kv = step.kv[kIndexRows],
                            .most = spec_.index->most,
                            .chosen = rows});
  attend.chosen = rows;
  attend.most = spec_.index->most;
}

void CompressedBlock::forward(const BlockStep& step) const {
  const auto& w = step.weights;
  project(step);
  const Rows query = step.scratch[kQueryRows].f32, row = step.scratch[kRowRows].f32;
  CHECK(query.stride == query.width);
  const Norm head_norm{.kind = spec_.norm.kind, .epsilon = spec_.norm.epsilon, .weight = {}, .bias = {}};
  const Rows heads{query.data, query.rows * spec_.heads, spec_.head_dim, spec_.head_dim};
  step.backend.norm_quantize({.stream = heads,
                              .branch = {},
                              .branch_gate = {},
                              .norm = &head_norm,
                              .rows = {},
                              .out = {.f32 = heads, .forms = {}}});
  const Norm row_norm = norm(step, kRowNorm);
  step.backend.norm_quantize({.stream = row,
                              .branch = {},
                              .branch_gate = {},
                              .norm = &row_norm,
                              .rows = {},
                              .out = {.f32 = row, .forms = {}}});
  rotate(step, query, spec_.head_dim, RotateHeadsParams::Turn::forth);
  rotate(step, row, spec_.head_dim, RotateHeadsParams::Turn::forth);
  step.backend.rope_store({.query = query,
                           .key = {row.data, row.rows, 0, row.stride},
                           .value = row,
                           .head_dim = spec_.head_dim,
                           .cos = {},
                           .sin = {},
                           .kv = step.kv[kOwn]});
  const Activation& attended = step.scratch[kAttendedRows];
  AttendParams attend{.query = query,
                      .heads = spec_.heads,
                      .kv = step.kv[kOwn],
                      .scale = spec_.scale,
                      .sinks = w[kSinks],
                      .out = attended};
  if (spec_.stride > 0) {
    compress(step, kInputs, kInputRows, kRows);
    attend.beside = step.kv[kRows];
  }
  if (spec_.index) {
    compress(step, kIndexInputs, kIndexInputRows, kIndexRows);
    choose_rows(step, attend);
  }
  step.backend.attend(attend);
  rotate(step, attended.f32, spec_.head_dim, RotateHeadsParams::Turn::back);
  step.backend.project_heads(
      {.in = attended.f32, .heads = spec_.groups, .weight = w[kGroups], .out = step.scratch[kGroupRows]});
  const Projection out[] = {{w[kOut], {}, step.out}};
  step.backend.project({step.scratch[kGroupRows], out});
}

}  // namespace

BlockPtr make_block(const CompressedSpec& spec, uint32_t dim) {
  return std::make_shared<CompressedBlock>(spec, dim);
}

}  // namespace quire
