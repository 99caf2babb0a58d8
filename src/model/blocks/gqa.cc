#include "model/blocks/gqa.h"

#include <algorithm>

#include "base/check.h"
#include "model/blocks/gathered.h"

namespace quire {
namespace {

class GqaBlock : public Block {
 public:
  GqaBlock(const GqaSpec& spec, uint32_t dim)
      : spec_(spec),
        dim_(dim),
        own_kv_(share_of(spec.kv_heads, 1, spec.place)),
        own_heads_{own_kv_.begin * heads_per_kv(), own_kv_.count * heads_per_kv()},
        query_(own_heads_.count * spec.key_dim),
        key_(own_kv_.count * spec.key_dim),
        value_(own_kv_.count * spec.value_dim),
        attended_(size_t(spec.heads) * spec.value_dim) {
    CHECK(!spec.blocks || (spec.rope && !spec.shares_with && spec.window == 0 && spec.chunk == 0 &&
                           spec.slopes.empty() && !has_gate()));
  }

  std::vector<Role> roles() const override;
  std::vector<size_t> scratch() const override {
    std::vector<size_t> widths = {query_, spec_.shares_with ? 0 : key_, spec_.shares_with ? 0 : value_,
                                  attended_};
    if (spec_.output_gate) widths.insert(widths.end(), {2 * query_, query_, attended_});
    if (spec_.own_gate != GateOf::none) widths.insert(widths.end(), {0, gate_width(), attended_});
    if (spec_.blocks)
      widths.insert(widths.end(), {index_query_width(), spec_.blocks->key_dim,
                                   size_t(spec_.kv_heads) * spec_.blocks->most});
    return widths;
  }
  KvLayer cached() const override {
    KvLayer streams = {
        // Pages are alike on all ranks, so that what moves in one moves in all: those who have a head less leave its place empty.
        {.kv_heads = (spec_.kv_heads + spec_.place.of - 1) / spec_.place.of,
         .key_dim = spec_.key_dim,
         .value_dim = spec_.value_dim,
         .window = spec_.chunk == 0 ? spec_.window : spec_.chunk,  // what a chunk sees is never further back
         .page_tokens = spec_.page_tokens,
         .shares_with = spec_.shares_with}};
    if (spec_.blocks)
      streams.push_back({.kv_heads = 1, .key_dim = spec_.blocks->key_dim, .page_tokens = spec_.page_tokens});
    return streams;
  }
  StepCost cost(const StepShape& shape, std::span<const KvLayerLayout* const> streams) const override;
  void forward(const BlockStep& step) const override;

 private:
  enum : size_t {  // roles
    kQuery,
    kKey,
    kValue,
    kOut,
    kQueryBias,
    kKeyBias,
    kValueBias,
    kOutBias,
    kQueryNorm,
    kQueryNormBias,
    kKeyNorm,
    kKeyNormBias,
    kSinks,
    kGate,
    kIndexQuery,  // these, if there is an index
    kIndexKey,
    kIndexQueryNorm,
    kIndexQueryNormBias,
    kIndexKeyNorm
  };
  enum : uint8_t {  // scratch
    kQueryRows,
    kKeyRows,
    kValueRows,
    kAttendedRows,
    kBothRows,  // from here on of those with a gate
    kGateRows,
    kUngatedRows,
    kIndexQueryRows = kBothRows,  // from here on of those with an index, which have no gate
    kIndexKeyRows,
    kChosenRows  // numbers of blocks
  };

  size_t heads_per_kv() const { return spec_.kv_heads == 0 ? 0 : spec_.heads / spec_.kv_heads; }
  bool has_gate() const { return spec_.output_gate || spec_.own_gate != GateOf::none; }
  size_t gate_width() const {
    return spec_.own_gate == GateOf::none ? 0 : spec_.own_gate == GateOf::heads ? spec_.heads : attended_;
  }
  // What is attended to, and where what own heads see of it goes.
  KvView own_rows(const KvView& kv, KvLayerLayout& own) const;
  Activation own_columns(const Activation& attended) const;
  size_t index_query_width() const { return size_t(spec_.kv_heads) * spec_.blocks->key_dim; }
  void choose_blocks(const BlockStep& step, AttendParams& attend) const;
  // The rows of values, normed head by head.
  void norm_values(const BlockStep& step) const;
  Norm norm(const BlockStep& step, size_t weight) const {
    return {spec_.norm.kind, spec_.norm.epsilon, step.weights[weight], step.weights[weight + 1]};
  }
  Norm index_norm(const BlockStep& step, size_t weight) const {
    return {spec_.blocks->norm.kind, spec_.blocks->norm.epsilon, step.weights[weight],
            step.weights[weight + 1]};
  }

  GqaSpec spec_;
  uint64_t dim_;
  RowShare own_kv_, own_heads_;            // of this rank: all, where there is one
  size_t query_, key_, value_, attended_;  // widths; attended_ of all heads, the others of one's own
};

std::vector<Role> GqaBlock::roles() const {
  const Presence own = spec_.shares_with ? Presence::absent : Presence::required;
  const Presence own_bias = spec_.shares_with ? Presence::absent : Presence::optional;
  const auto matrix = [&](const char* name, const char* tensor, uint64_t rows) -> Role {
    return {.name = name, .tensor = tensor, .shape = {rows, dim_}};
  };
  const uint64_t query = uint64_t(spec_.heads) * spec_.key_dim,
                 key = uint64_t(spec_.kv_heads) * spec_.key_dim;
  const uint64_t value = uint64_t(spec_.kv_heads) * spec_.value_dim;
  const uint64_t asked = spec_.output_gate ? 2 * query : query;
  std::vector<Role> roles = {matrix("query", "attn_q.weight", asked),
                             matrix("key", "attn_k.weight", key),
                             matrix("value", "attn_v.weight", value),
                             {.name = "attention out",
                              .tensor = "attn_output.weight",
                              .shape = {dim_, attended_},
                              .reads = kAttendedRows},
                             vector_role("query bias", "attn_q.bias", asked),
                             vector_role("key bias", "attn_k.bias", key, own_bias),
                             vector_role("value bias", "attn_v.bias", value, own_bias),
                             vector_role("attention out bias", "attn_output.bias", dim_)};
  roles[kKey].presence = roles[kValue].presence = own;
  if (spec_.values == Values::keys_normed) {
    roles[kValue].presence = roles[kValueBias].presence = Presence::absent;
    roles[kKey].name = "key and value";
  }
  uint64_t begin = 0;  // of files that have all three in one
  const uint64_t length = asked + key + value;
  for (const size_t role : {kQuery, kKey, kValue}) {
    roles[role].part = {"attn_q.weight", "attn_qkv.weight", begin, length};
    roles[role + kQueryBias].part = {"attn_q.weight", "attn_qkv.bias", begin, length};
    begin += roles[role].shape.front();
  }
  const QueryKeyNorm kind = spec_.query_key_norm;
  const bool norms = kind != QueryKeyNorm::none && kind != QueryKeyNorm::per_head_weightless;
  const bool whole = kind == QueryKeyNorm::whole;
  const auto add_norm = [&](const char* name, const char* tensor, uint32_t heads, Presence presence) {
    const uint64_t width = whole ? uint64_t(heads) * spec_.key_dim : spec_.key_dim;
    for (Role& role : norm_roles(name, tensor, width, norms ? presence : Presence::absent)) {
      if (kind == QueryKeyNorm::per_head_own) role.shape = {heads, spec_.key_dim};
      roles.push_back(std::move(role));
    }
  };
  add_norm("query norm", "attn_q_norm", spec_.heads, Presence::required);
  add_norm("key norm", "attn_k_norm", spec_.kv_heads, own);
  roles.push_back(vector_role("sinks", "attn_sinks.weight", spec_.heads,
                              spec_.sinks ? Presence::required : Presence::absent));
  roles.push_back(matrix("attention gate", "attn_gate.weight", gate_width()));
  if (gate_width() == 0) roles.back().presence = Presence::absent;
  if (spec_.blocks) {
    roles.push_back(matrix("queries of the index", "indexer.q_proj.weight", index_query_width()));
    roles.push_back(matrix("keys of the index", "indexer.k_proj.weight", spec_.blocks->key_dim));
    for (const auto& [name, tensor] : {std::pair("norm of the index's queries", "indexer.q_norm"),
                                       std::pair("norm of the index's keys", "indexer.k_norm")})
      for (Role& role : norm_roles(name, tensor, spec_.blocks->key_dim)) roles.push_back(std::move(role));
  }
  if (spec_.place.is_alone()) return roles;
  const auto divide = [&](size_t role, RowShare share, size_t unit) {
    roles[role] = divided(std::move(roles[role]), {share.begin * unit, share.count * unit});
  };
  for (const size_t role : {kQuery, kQueryBias}) divide(role, own_heads_, spec_.key_dim);
  for (const size_t role : {kKey, kKeyBias}) divide(role, own_kv_, spec_.key_dim);
  for (const size_t role : {kValue, kValueBias}) divide(role, own_kv_, spec_.value_dim);
  for (const size_t role : {kOut, kOutBias}) divide(role, rows_of(dim_, spec_.place), 1);
  divide(kSinks, own_heads_, 1);
  return roles;
}

KvView GqaBlock::own_rows(const KvView& kv, KvLayerLayout& own) const {
  if (spec_.place.is_alone()) return kv;
  own = *kv.layer;
  own.shape.kv_heads = uint32_t(own_kv_.count);
  return {kv.group, &own};
}

Activation GqaBlock::own_columns(const Activation& attended) const {
  if (spec_.place.is_alone()) return attended;
  return {.f32 = attended.f32.columns(own_heads_.begin * spec_.value_dim, own_heads_.count * spec_.value_dim),
          .forms = {}};
}

void GqaBlock::norm_values(const BlockStep& step) const {
  const auto heads = [&](uint8_t scratch) -> Rows {
    const Rows& rows = step.scratch[scratch].f32;
    CHECK(rows.stride == rows.width && rows.width % spec_.value_dim == 0);
    return {rows.data, rows.rows * own_kv_.count, spec_.value_dim, spec_.value_dim};
  };
  const Norm norm{.kind = NormKind::rms, .epsilon = spec_.norm.epsilon, .weight = {}, .bias = {}};
  step.backend.norm_quantize({.stream = heads(spec_.values == Values::keys_normed ? kKeyRows : kValueRows),
                              .branch = {},
                              .branch_gate = {},
                              .norm = &norm,
                              .rows = {},
                              .out = {.f32 = heads(kValueRows), .forms = {}}});
}

StepCost GqaBlock::cost(const StepShape& shape, std::span<const KvLayerLayout* const> streams) const {
  const uint32_t seen = spec_.chunk == 0 ? spec_.window : spec_.chunk;
  const uint64_t window = seen == 0 ? ~uint64_t(0) : seen;
  const uint64_t end = uint64_t(shape.depth) + shape.tokens;
  double visible = 0;  // pairs of a query's token and a cached one
  double scored = 0;   // of these and keys of an index
  for (uint64_t position = shape.depth; position < end; ++position) {
    visible += double(std::min(position + 1, window));
    if (!spec_.blocks || position / spec_.blocks->block < spec_.blocks->most) continue;
    scored += double(position + 1);
    visible -= double(position / spec_.blocks->block + 1 - spec_.blocks->most) * spec_.blocks->block;
  }
  StepCost cost;
  const double per_pair = 2 * double(own_heads_.count) * (spec_.key_dim + spec_.value_dim);
  cost.f32_ops = shape.sequences * visible * per_pair;
  // From the first row that the first token sees to the last token's own.
  const uint64_t first = uint64_t(shape.depth) + 1 - std::min(uint64_t(shape.depth) + 1, window);
  const double row_bytes =
      double(streams[0]->key_row_bytes + streams[0]->value_row_bytes) * double(own_kv_.count);
  cost.kv_bytes = shape.sequences * double(end - first) * row_bytes;
  if (scored == 0) return cost;
  cost.f32_ops += shape.sequences * scored * 2 * double(index_query_width());
  const double read = std::min(double(end), double(shape.tokens) * spec_.blocks->most * spec_.blocks->block);
  cost.kv_bytes = shape.sequences * (read * row_bytes + double(end) * double(streams[1]->key_row_bytes));
  return cost;
}

void GqaBlock::choose_blocks(const BlockStep& step, AttendParams& attend) const {
  const auto& w = step.weights;
  const BlockIndexSpec& index = *spec_.blocks;
  const Rows query = step.scratch[kIndexQueryRows].f32, key = step.scratch[kIndexKeyRows].f32;
  const Rows& kept = step.scratch[kChosenRows].f32;
  const Projection both[] = {{w[kIndexQuery], {}, query}, {w[kIndexKey], {}, key}};
  step.backend.project({step.in, both});
  const Norm query_norm = index_norm(step, kIndexQueryNorm), key_norm = index_norm(step, kIndexKeyNorm);
  const RopeAngles& angles = step.angles[*spec_.rope];
  step.backend.rope_store({.query = query,
                           .key = key,
                           .value = {},
                           .head_dim = index.key_dim,
                           .query_norm = &query_norm,
                           .key_norm = &key_norm,
                           .norm_span = index.key_dim,
                           .cos = angles.cos,
                           .sin = angles.sin,
                           .pairing = angles.pairing,
                           .kv = step.kv[1]});
  attend.most = index.most;
  attend.block = index.block;
  const std::span blocks(reinterpret_cast<uint32_t*>(kept.data), kept.rows * spec_.kv_heads * index.most);
  attend.chosen = blocks;
  step.backend.choose_blocks({.query = query,
                              .heads = spec_.kv_heads,
                              .kv = step.kv[1],
                              .block = index.block,
                              .most = index.most,
                              .local = index.local,
                              .chosen = blocks});
}

void GqaBlock::forward(const BlockStep& step) const {
  const auto& w = step.weights;
  const Rows query = step.scratch[kQueryRows].f32;
  const Rows asked = spec_.output_gate ? step.scratch[kBothRows].f32 : query;
  Projection projections[4] = {{w[kQuery], w[kQueryBias], asked},
                               {w[kKey], w[kKeyBias], step.scratch[kKeyRows].f32},
                               {w[kValue], w[kValueBias], step.scratch[kValueRows].f32}};
  const bool own = !spec_.shares_with;
  size_t owns = !own ? 1 : spec_.values == Values::keys_normed ? 2 : 3;
  const Rows key = projections[1].out, value = projections[2].out;
  if (spec_.own_gate != GateOf::none) projections[owns++] = {w[kGate], {}, step.scratch[kGateRows].f32};
  step.backend.project({step.in, std::span(projections).first(owns)});
  if (own && spec_.values != Values::own) norm_values(step);
  if (spec_.output_gate) {
    step.backend.split_heads(
        {.both = asked, .head_dim = spec_.key_dim, .first = query, .second = step.scratch[kGateRows].f32});
  }

  const bool norms = spec_.query_key_norm != QueryKeyNorm::none;
  const Norm query_norm = norms ? norm(step, kQueryNorm) : Norm{};
  const Norm key_norm = norms && own ? norm(step, kKeyNorm) : Norm{};
  KvLayerLayout own_layer;
  const KvView kv = own_rows(step.kv[0], own_layer);
  RopeStoreParams rope{.query = query,
                       .key = own ? key : Rows{},
                       .value = own ? value : Rows{},
                       .head_dim = spec_.key_dim,
                       .query_norm = norms ? &query_norm : nullptr,
                       .key_norm = norms && own ? &key_norm : nullptr,
                       .norm_span = spec_.query_key_norm == QueryKeyNorm::whole ? 0 : spec_.key_dim,
                       .norm_order = spec_.norm_order,
                       .cos = {},
                       .sin = {},
                       .temperature = spec_.temperature,
                       .kv = kv};
  if (spec_.rope) {
    const RopeAngles& angles = step.angles[*spec_.rope];
    rope.cos = angles.cos;
    rope.sin = angles.sin;
    rope.pairing = angles.pairing;
  }
  step.backend.rope_store(rope);

  const std::span<const float> all_slopes = spec_.slopes;
  const std::span<const float> slopes =
      all_slopes.empty() ? all_slopes : all_slopes.subspan(own_heads_.begin, own_heads_.count);
  AttendParams attend{.query = query,
                      .heads = uint32_t(own_heads_.count),
                      .kv = kv,
                      .chunk = spec_.chunk,
                      .scale = spec_.scale,
                      .soft_cap = spec_.soft_cap,
                      .sinks = w[kSinks],
                      .slopes = slopes,
                      .out = own_columns(step.scratch[has_gate() ? kUngatedRows : kAttendedRows])};
  if (spec_.blocks) choose_blocks(step, attend);
  for (const Tap& tap : step.taps.list) {
    if (tap.layer == step.layer) step.backend.tap(tap, attend, step.taps.values);
  }
  step.backend.attend(attend);
  if (has_gate()) {
    step.backend.activate({.gate = step.scratch[kGateRows].f32,
                           .up = step.scratch[kUngatedRows].f32,
                           .span = spec_.own_gate == GateOf::heads ? spec_.value_dim : 1,
                           .function = {.kind = spec_.gate_function},
                           .out = step.scratch[kAttendedRows]});
  }
  gather_activation(step, step.scratch[kAttendedRows], heads_per_kv() * spec_.value_dim);
  const Projection out[] = {{w[kOut], w[kOutBias], own_rows_of_product(step.out, spec_.place)}};
  step.backend.project({step.scratch[kAttendedRows], out});
  gather_product(step, step.out);
}

}  // namespace

BlockPtr make_block(const GqaSpec& spec, uint32_t dim) {
  return std::make_shared<GqaBlock>(spec, dim);
}

}  // namespace quire
