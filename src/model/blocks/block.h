#pragma once

#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "kv/layout/kv_layout.h"
#include "model/blocks/role.h"
#include "model/step_cost.h"

namespace quire {

class ColumnGather;

// The angles of one of the model's ropes in this step.
struct RopeAngles {
  Rows cos, sin;  // [tokens, pairs]
  RopePairing pairing = RopePairing::halves;
};

// What a step is to report besides its logits.
struct Taps {
  std::span<const Tap> list = {};
  std::span<float> values = {};             // that they join
  std::span<const ColumnTap> columns = {};  // they too
};

// What a block works with in one step. All of it belongs to others and holds for the call only.
struct BlockStep {
  Backend& backend;
  size_t layer;
  const Activation& in;                   // [tokens, dim]: the normed stream
  const Activation* router_in = nullptr;  // what a router reads, where that is not `in`
  Rows out;                               // [tokens, dim]: what will be added to the stream
  Rows out_gate;                          // [tokens, 1], of a block that gates_output
  Rows layer_input;                 // [tokens, width]: what the model has read for this layer (LayerInputs)
  std::span<const Weight> weights;  // as roles() says; empty where the spec or the file has none
  std::span<const Activation> scratch;  // as scratch() says, [tokens, width] each
  std::span<const RopeAngles> angles;   // by rope of the model
  std::span<const KvView> kv;           // where cached() of the layer is kept, by stream
  const BatchView& batch;
  Taps taps;          // those of other layers too
  Rows streams = {};  // [tokens, streams * dim], of a model that has several
  Rows lent = {};     // [tokens, lent_rows()]: what a block before it has left there, or it leaves for others
  std::span<const ColumnSums> sums =
      {};                          // of what products read, by role; empty: nobody asks. Those of experts
                                   // are the block's to pass on, others are the decoder's
  ColumnGather* gather = nullptr;  // null: the block computes all of its rows
};

// A part of a layer that reads the normed residual stream and adds to it: a mixer, which lets tokens see each other, or
// an MLP, which does not. Describes itself to the rest of the model, which asks for nothing else. Made from its spec; has
// no weights, no memory and no state.
class Block {
 public:
  virtual ~Block() = default;

  virtual std::vector<Role> roles() const = 0;
  // The widths of the rows that it needs while it runs; no other block runs then, and they share the memory.
  virtual std::vector<size_t> scratch() const = 0;
  // What it wants kept of every token, the formats of keys and values aside; nothing by default.
  virtual KvLayer cached() const { return {}; }
  // The width of rows that it leaves for blocks after it; all that do agree.
  virtual size_t lent_rows() const { return 0; }
  // Whether what it adds is times the sigmoid of a number per token, which it writes too.
  virtual bool gates_output() const { return false; }
  // Of a step, without the products of its weights: what it makes of the cache, where its layer is kept as said.
  virtual StepCost cost(const StepShape&, std::span<const KvLayerLayout* const>) const { return {}; }
  virtual void forward(const BlockStep& step) const = 0;
};
using BlockPtr = std::shared_ptr<const Block>;

}  // namespace quire
