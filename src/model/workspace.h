#pragma once

#include <vector>

#include "backend/backend.h"
#include "model/model_spec.h"
#include "model/weights.h"

namespace quire {

// The activations of one step on one side of a backend: allocated once for the largest batch seen, reused by every layer.
class Workspace {
 public:
  Workspace(Backend& backend, const ModelSpec& spec, const Weights& weights, Side side);

  // Makes room for the largest step, so that nothing has to move later.
  void reserve(size_t tokens, size_t logit_rows);
  // The rows of a step. Grows, which waits for all that is on its way, if it is larger than any that was expected: what was handed
  // out before is then no longer valid.
  void fit(size_t tokens, size_t logit_rows);

  Rows stream;          // [tokens, dim]: the residual stream
  Rows branch;          // [tokens, dim]: what a block adds to it
  Rows branch_gate;     // [tokens, 1]: of blocks that gate what they add
  Rows layer_inputs;    // [tokens, layers * width]: what is read for each layer
  Rows layer_products;  // the same: what its matrix makes of the embedding
  Rows streams;  // [tokens, streams * dim]: of a model that has several, with what connects them behind
  Activation connected;            // [tokens, streams * dim]: the norm of all that are connected
  Rows connection;                 // [tokens, streams]: what their end is told by
  Rows lent;                       // [tokens, lent_rows()]: what blocks leave for others
  Activation joined;               // [tokens, 2 * dim]: of a model that joins
  Rows logits;                     // [logit_rows, vocab]
  Activation normed;               // [tokens, dim]: input of the blocks
  Activation final;                // [logit_rows, dim]: input of the head
  std::vector<RopeAngles> angles;  // by rope of the spec
  std::vector<std::vector<Activation>> scratch;  // by block, as its scratch() says; all in the same memory

  size_t bytes() const { return memory_.size(); }

 private:
  struct Want {
    size_t width = 0;
    FormSet forms = {};
  };

  // Cuts all rows from one piece of memory, or from none, and returns how much of it they take.
  size_t cut(std::byte* memory, size_t tokens, size_t logit_rows);

  Backend& whole_;
  Side side_;
  Backend& backend_;  // of that side
  const ModelSpec& spec_;
  FormSet normed_forms_, final_forms_, joined_forms_, connected_forms_;
  bool gates_ = false;                     // some block does
  size_t lent_width_ = 0;                  // of either side's blocks: it crosses with the stream
  std::vector<std::vector<Want>> wanted_;  // by block; those of the other side want nothing
  size_t tokens_ = 0;
  size_t logit_rows_ = 0;
  Buffer memory_;
  Buffer crossing_;  // of the host's side: its stream, in memory that the device copies fast
};

}  // namespace quire
