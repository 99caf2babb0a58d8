#include "model/blocks/latent_attention.h"

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
    return {spec_.query_rank,
            heads_ * (spec_.plain_dim + rotated_),
            latent_ + rotated_,
            latent_,
            heads_ * (rotated_ + latent_),
            heads_ * latent_,
            heads_ * spec_.value_dim};
  }
  KvLayer cached() const override {
    return {
        {.kv_heads = 1, .key_dim = uint32_t(rotated_), .value_dim = uint32_t(latent_), .key_goes_on = true}};
  }
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
    kLatentNormBias
  };
  enum : uint8_t {  // scratch
    kQueryLatentRows,
    kQueryRows,     // [heads, plain and rotated]
    kLatentRows,    // latent and rotated, as the matrix gives them
    kNormedRows,    // latent
    kAskingRows,    // [heads, rotated and latent]
    kAttendedRows,  // [heads, latent]
    kValueRows
  };

  void make_queries(const BlockStep& step, const Rows& latent) const;
  Norm norm(const BlockStep& step, size_t weight) const {
    return {spec_.norm.kind, spec_.norm.epsilon, step.weights[weight], step.weights[weight + 1]};
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
  return roles;
}

StepCost LatentBlock::cost(const StepShape& shape, std::span<const KvLayerLayout* const> streams) const {
  const double end = double(shape.depth) + shape.tokens;
  const double visible = (double(shape.depth) + 1 + end) / 2 * shape.tokens;  // pairs of tokens
  StepCost cost;
  cost.f32_ops = shape.sequences * visible * 2 * double(heads_) * double(rotated_ + 2 * latent_);
  cost.kv_bytes = shape.sequences * end * double(streams[0]->key_row_bytes + streams[0]->value_row_bytes);
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
    const Projection up[] = {{w[kQuery], {}, query}};
    step.backend.project({ranked, up});
  }
  step.backend.project_heads(
      {.in = query, .heads = uint32_t(heads_), .weight = w[kKeys], .out = step.scratch[kAskingRows]});
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

  const AttendParams attend{.query = asking,
                            .heads = uint32_t(heads_),
                            .kv = step.kv[0],
                            .scale = spec_.attention.scale,
                            .sinks = {},
                            .out = step.scratch[kAttendedRows]};
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
