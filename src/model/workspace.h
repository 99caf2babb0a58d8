#pragma once

#include <vector>

#include "backend/backend.h"
#include "model/model_spec.h"
#include "model/weights.h"

namespace quire {

// The activations of one step: allocated once for the largest batch seen, reused by every layer.
class Workspace {
 public:
  Workspace(Backend& backend, const ModelSpec& spec, const Weights& weights);

  // Grows to hold `tokens` tokens, `logit_rows` rows of logits. What was handed out before is no longer
  // valid.
  void fit(size_t tokens, size_t logit_rows);

  Rows stream;          // [tokens, dim]: the residual stream
  Rows branch;          // [tokens, dim]: what attention or MLP adds to it
  Rows query;           // [tokens, heads * key_dim]
  Rows key;             // [tokens, kv_heads * key_dim]
  Rows value;           // [tokens, kv_heads * value_dim]
  Rows gate, up;        // [tokens, mlp_width]
  Rows logits;          // [logit_rows, vocab]
  Activation normed;    // [tokens, dim]: input of attention and MLP
  Activation attended;  // [tokens, heads * value_dim]
  Activation hidden;    // [tokens, mlp_width]
  Activation final;     // [logit_rows, dim]: input of the head
  struct Angles {
    Rows cos, sin;  // [tokens, pairs]
  };
  std::vector<Angles> angles;     // by rope of the spec
  std::vector<uint32_t> experts;  // [tokens, experts used]
  std::vector<float> expert_shares;

  size_t bytes() const;

 private:
  Rows rows(size_t count, size_t width);
  Activation activation(size_t count, size_t width, FormSet forms);

  Backend& backend_;
  const ModelSpec& spec_;
  FormSet normed_forms_, attended_forms_, hidden_forms_, final_forms_;
  size_t tokens_ = 0;
  size_t logit_rows_ = 0;
  std::vector<Buffer> buffers_;
};

}  // namespace quire
