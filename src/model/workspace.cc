#include "model/workspace.h"

#include <algorithm>

namespace quire {

Workspace::Workspace(Backend& backend, const ModelSpec& spec, const Weights& weights)
    : backend_(backend), spec_(spec) {
  const auto want = [&](FormSet& forms, const Weight& weight) {
    if (weight) forms |= backend_.form_for(weight.view.dtype);
  };
  for (const LayerWeights& layer : weights.layers) {
    for (const Weight* weight :
         {&layer.query, &layer.key, &layer.value, &layer.gate, &layer.up, &layer.router}) {
      want(normed_forms_, *weight);
    }
    want(attended_forms_, layer.attention_out);
    want(hidden_forms_, layer.down);
  }
  want(final_forms_, weights.head);
}

void Workspace::fit(size_t tokens, size_t logit_rows) {
  const size_t token_capacity = std::max(tokens, tokens_);
  const size_t logit_capacity = std::max(logit_rows, logit_rows_);
  if (token_capacity > tokens_ || logit_capacity > logit_rows_ || buffers_.empty()) {
    backend_.wait(backend_.mark());  // what is on its way may still use the old
    tokens_ = logit_rows_ = 0;       // until all of it is there
    buffers_.clear();
    const size_t mlp_width = spec_.experts.count > 0 ? 0 : spec_.mlp_width;
    stream = rows(token_capacity, spec_.dim);
    branch = rows(token_capacity, spec_.dim);
    query = rows(token_capacity, size_t(spec_.heads) * spec_.key_dim);
    key = rows(token_capacity, size_t(spec_.kv_heads) * spec_.key_dim);
    value = rows(token_capacity, size_t(spec_.kv_heads) * spec_.value_dim);
    gate = rows(token_capacity, mlp_width);
    up = rows(token_capacity, mlp_width);
    logits = rows(logit_capacity, spec_.vocab);
    normed = activation(token_capacity, spec_.dim, normed_forms_);
    attended = activation(token_capacity, size_t(spec_.heads) * spec_.value_dim, attended_forms_);
    hidden = activation(token_capacity, mlp_width, hidden_forms_);
    final = activation(logit_capacity, spec_.dim, final_forms_);
    angles.clear();
    for (const RopeSpec& rope : spec_.ropes) {
      const size_t pairs = rope.inverse_frequencies.size();
      angles.push_back({rows(token_capacity, pairs), rows(token_capacity, pairs)});
    }
    experts.resize(token_capacity * spec_.experts.used);
    expert_shares.resize(token_capacity * spec_.experts.used);
    tokens_ = token_capacity;
    logit_rows_ = logit_capacity;
  }
  for (Rows* r : {&stream, &branch, &query, &key, &value, &gate, &up}) r->rows = tokens;
  for (Activation* a : {&normed, &attended, &hidden}) a->f32.rows = tokens;
  for (Angles& a : angles) a.cos.rows = a.sin.rows = tokens;
  logits.rows = final.f32.rows = logit_rows;
}

Rows Workspace::rows(size_t count, size_t width) {
  buffers_.push_back(backend_.allocate(count * width * sizeof(float)));
  return {buffers_.back().as<float>(), count, width, width};
}

Activation Workspace::activation(size_t count, size_t width, FormSet forms) {
  Activation result;
  result.f32 = rows(count, width);
  result.forms = forms;
  for (size_t form = kFirstRoundedForm; form < kActivationFormCount; ++form) {
    if (!forms.has(ActivationForm(form)) || width == 0) continue;
    result.stride[form] = backend_.activation_bytes(ActivationForm(form), width);
    buffers_.push_back(backend_.allocate(count * result.stride[form]));
    result.data[form] = buffers_.back().data();
  }
  return result;
}

size_t Workspace::bytes() const {
  size_t total = 0;
  for (const Buffer& buffer : buffers_) total += buffer.size();
  return total;
}

}  // namespace quire
