#include "model/workspace.h"

#include <algorithm>

namespace quire {
namespace {

constexpr size_t kAlignment = 4096;

// Memory that is handed out piece by piece. Without memory it only counts.
class Pieces {
 public:
  Pieces(const Backend& backend, std::byte* memory, size_t begin = 0)
      : backend_(backend), memory_(memory), used_(begin) {}

  Rows rows(size_t count, size_t width) {
    if (width == 0) return {};
    return {reinterpret_cast<float*>(take(count * width * sizeof(float))), count, width, width};
  }

  Activation activation(size_t count, size_t width, FormSet forms) {
    Activation result;
    result.f32 = rows(count, width);
    result.forms = forms;
    for (size_t form = kFirstRoundedForm; form < kActivationFormCount; ++form) {
      if (!forms.has(ActivationForm(form)) || width == 0) continue;
      result.stride[form] = backend_.activation_bytes(ActivationForm(form), width);
      result.data[form] = take(count * result.stride[form]);
    }
    return result;
  }

  size_t used() const { return used_; }

 private:
  std::byte* take(size_t bytes) {
    std::byte* piece = memory_ == nullptr ? nullptr : memory_ + used_;
    used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return piece;
  }

  const Backend& backend_;
  std::byte* memory_;
  size_t used_;
};

}  // namespace

Workspace::Workspace(Backend& backend, const ModelSpec& spec, const Weights& weights, Side side)
    : scratch(weights.blocks.size()),
      whole_(backend),
      side_(side),
      backend_(backend.side(side)),
      spec_(spec) {
  for (const BlockWeights& block : weights.blocks) {
    std::vector<Want>& wanted = wanted_.emplace_back();
    lent_width_ = std::max(lent_width_, block.block->lent_rows());
    if (block.side != side) continue;
    gates_ |= block.block->gates_output();
    for (const size_t width : block.block->scratch()) wanted.push_back({.width = width});
    for (size_t i = 0; i < block.roles.size(); ++i) {
      const Role& role = block.roles[i];
      if (role.kind != RoleKind::product || role.reads == Role::kInside || !block.weights[i]) continue;
      FormSet& forms = role.reads == Role::kInput ? normed_forms_ : wanted.at(role.reads).forms;
      forms |= backend_.form_for(block.weights[i].view.dtype);
    }
  }
  if (weights.layer_projection && side == weights.first_side())
    normed_forms_ |= backend_.form_for(weights.layer_projection.view.dtype);
  for (const Weight& one : weights.streams_in) normed_forms_ |= backend_.form_for(one.view.dtype);
  for (const Weight& one : weights.streams_out) normed_forms_ |= backend_.form_for(one.view.dtype);
  if (weights.connection) connected_forms_ |= backend_.form_for(weights.connection.view.dtype);
  if (weights.join) joined_forms_ |= backend_.form_for(weights.join.view.dtype);
  if (weights.head && side == Side::device) final_forms_ |= backend_.form_for(weights.head.view.dtype);
}

void Workspace::reserve(size_t tokens, size_t logit_rows) {
  const size_t token_capacity = std::max(tokens, tokens_);
  const size_t logit_capacity = std::max(logit_rows, logit_rows_);
  if (token_capacity > tokens_ || logit_capacity > logit_rows_ || memory_.size() == 0) {
    whole_.wait(whole_.mark());  // what is on its way may still use the old
    tokens_ = logit_rows_ = 0;   // until all of it is there
    memory_ = {};
    crossing_ = {};
    if (side_ == Side::host)
      crossing_ = whole_.side(Side::device).allocate_host(token_capacity * spec_.dim * sizeof(float));
    memory_ = backend_.allocate(cut(nullptr, token_capacity, logit_capacity));
    cut(memory_.data(), token_capacity, logit_capacity);
    tokens_ = token_capacity;
    logit_rows_ = logit_capacity;
  }
}

void Workspace::fit(size_t tokens, size_t logit_rows) {
  reserve(tokens, logit_rows);
  for (Rows* r : {&stream, &branch, &branch_gate, &normed.f32, &joined.f32, &layer_inputs, &layer_products,
                  &streams, &connected.f32, &connection, &lent})
    r->rows = tokens;
  for (RopeAngles& a : angles) a.cos.rows = a.sin.rows = tokens;
  for (std::vector<Activation>& block : scratch) {
    for (Activation& a : block) a.f32.rows = tokens;
  }
  logits.rows = final.f32.rows = logit_rows;
}

size_t Workspace::cut(std::byte* memory, size_t tokens, size_t logit_rows) {
  Pieces pieces(backend_, memory);
  stream = side_ == Side::host ? Rows{crossing_.as<float>(), tokens, spec_.dim, spec_.dim}
                               : pieces.rows(tokens, spec_.dim);
  branch = pieces.rows(tokens, spec_.dim);
  branch_gate = pieces.rows(tokens, gates_ ? 1 : 0);
  const size_t layer_inputs_width = spec_.layer_inputs.width * spec_.layers.size();
  layer_inputs = pieces.rows(tokens, layer_inputs_width);
  layer_products = pieces.rows(tokens, layer_inputs_width);
  const size_t count = spec_.hyper ? spec_.hyper->count : 0;
  streams = pieces.rows(tokens, count > 0           ? ConnectStreamsParams::width(spec_.dim, count)
                                : spec_.streams > 1 ? size_t(spec_.streams) * spec_.dim
                                                    : 0);
  connected = pieces.activation(tokens, count * spec_.dim, connected_forms_);
  connection = pieces.rows(tokens, count);
  lent = pieces.rows(tokens, lent_width_);
  joined = pieces.activation(tokens, spec_.joins ? 2 * size_t(spec_.dim) : 0, joined_forms_);
  logits = pieces.rows(logit_rows, spec_.vocab);
  normed = pieces.activation(tokens, spec_.dim, normed_forms_);
  final = pieces.activation(logit_rows, spec_.dim, final_forms_);
  angles.clear();
  for (const RopeSpec& rope : spec_.ropes) {
    const size_t pairs = rope.inverse_frequencies.size();
    angles.push_back({pieces.rows(tokens, pairs), pieces.rows(tokens, pairs), rope.pairing});
  }
  size_t most = pieces.used();
  for (size_t b = 0; b < wanted_.size(); ++b) {
    Pieces own(backend_, memory, pieces.used());
    scratch[b].clear();
    for (const Want& want : wanted_[b]) scratch[b].push_back(own.activation(tokens, want.width, want.forms));
    most = std::max(most, own.used());
  }
  return most;
}

}  // namespace quire
