#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda_runtime_api.h>

#include "backend/backend.h"
#include "backend/batch_view.h"
#include "backend/cuda/matmul/products.h"
#include "backend/cuda/recurrent/state_part.h"

// What recurrent layers need beside products, on the device: the operations of the same names in backend/backend.h, in their
// pieces. Pointers, those of Rows too, are to device memory; rows may begin anywhere. A token's results depend on what its sequence
// had before alone: tokens of a run are computed one after the other, and nobody's sum has another order for its company.

namespace quire::cuda {

// The states of one stream of one layer in the pages of their group (KvTables::Group): what each run finds and what it leaves.
struct StatePages {
  std::byte* layer = nullptr;  // the first page, at the layer's offset
  size_t page_bytes = 0, head_bytes = 0;
  const uint32_t* pages = nullptr;   // of a run: the one that it begins with, then those that it leaves
  const uint32_t* begins = nullptr;  // [runs + 1]: where a run's are
  const uint32_t* rows = nullptr;    // beside pages: the row that a state is the one before

  QUIRE_BOTH float* state(uint32_t page, uint32_t head) const {
    return reinterpret_cast<float*>(layer + size_t(page) * page_bytes + head * head_bytes);
  }
  // Null: it is the sequence's first.
  QUIRE_BOTH const float* before(uint32_t run, uint32_t head) const {
    const uint32_t page = pages[begins[run]];
    return page == kNoPage ? nullptr : state(page, head);
  }
  QUIRE_BOTH uint32_t left(uint32_t run) const { return begins[run + 1] - begins[run] - 1; }
  QUIRE_BOTH float* left(uint32_t run, uint32_t head, uint32_t index) const {
    return state(pages[begins[run] + 1 + index], head);
  }
  QUIRE_BOTH uint32_t left_row(uint32_t run, uint32_t index) const { return rows[begins[run] + 1 + index]; }
};

// Some tokens of a run.
struct RunPiece {
  uint32_t run;
  uint32_t place;  // of the first, in the run
  uint32_t count;
};
inline constexpr uint32_t kPieceTokens = 16;

// out = f(bias + the sum of weight[i] in[t - (span - 1) + i]), and the inputs that each run leaves.
struct DeviceConvolve {
  Rows in, out;  // elsewhere
  uint32_t span = 4;
  const float* weight = nullptr;  // [channels, span]
  const float* bias = nullptr;    // or null
  bool has_function = false;
  Gate function = {};
  StatePages inputs;
  const TokenRun* runs = nullptr;
  const RunPiece* pieces = nullptr;  // of all runs, kPieceTokens each but for their last
  uint32_t piece_count = 0;
};
// REQUIRES: a span of 2 to kMostSpan.
inline constexpr uint32_t kMostSpan = kPieceTokens;
void convolve(const DeviceConvolve& params, cudaStream_t stream);

// The first halves of heads to one place, the second halves to another.
void split_heads(const SplitHeadsParams& params, cudaStream_t stream);

// Queries and keys of a gated delta net are made as long as they should be, in their place; and its decays and betas.
struct DeviceDeltaGates {
  Rows mixed;
  uint32_t key_heads = 0, key_dim = 0, value_heads = 0;
  Rows beta, alpha;  // as in DeltaNetParams
  const float* rate = nullptr;
  const float* alpha_bias = nullptr;
  uint32_t decay_count = 0;  // of a token: one for each value head, or for each of their keys
  float* decays = nullptr;   // [tokens, decay_count]
  float* betas = nullptr;    // [tokens, value_heads]
};
void open_delta_gates(const DeviceDeltaGates& params, cudaStream_t stream);

// steps = softplus(in + bias), and decays = e^(rate steps).
struct DeviceSteps {
  Rows in;
  const float* bias = nullptr;
  const float* rate = nullptr;  // null: no decays are wanted
  Rows steps;                   // may be `in`
  float* decays = nullptr;      // [tokens, width]
};
void state_steps(const DeviceSteps& params, cudaStream_t stream);

// A state of keys by values for each head goes through the tokens of every run. REQUIRES: at most kMostStateKeys, a multiple of 4.
inline constexpr uint32_t kMostStateKeys = 256;
struct DeviceRecurrence {
  StateRule rule = StateRule::delta;
  StatePages state;
  const TokenRun* runs = nullptr;
  uint32_t run_count = 0;
  uint32_t heads = 0, key_heads = 0, keys = 0, values = 0;  // keys and values of a head
  KeyOrder order = KeyOrder::grouped;
  const float *query = nullptr, *key = nullptr;  // [tokens, key_heads * keys]
  size_t key_stride = 0;
  const float* value = nullptr;  // [tokens, heads * values]
  size_t value_stride = 0;
  const float* decay = nullptr;  // [tokens, heads or heads * keys]; of selective the rates, [values, keys]
  size_t decay_stride = 0;
  const float* beta = nullptr;  // [tokens, heads]; of selective [tokens, values]
  size_t beta_stride = 0;
  Rows out;  // [tokens, heads * values]
};
void recur(const DeviceRecurrence& params, cudaStream_t stream);

// What becomes of what a gated delta net reads: normed head by head, times f(gate).
struct DeviceDeltaEnd {
  Rows read;  // [tokens, heads * dim]
  uint32_t dim = 0;
  Rows gate;
  Gate function;
  const float* weight = nullptr;  // of the norm, [dim]
  float epsilon = 0;
  ActivationBlock out;  // or no data
  Rows out_f32;         // or nothing; may be `read`
};
void end_delta_net(const DeviceDeltaEnd& params, cudaStream_t stream);

// What becomes of what Mamba-1 and Mamba-2 read: read + skip in, times SiLU(gate), normed group by group.
struct DeviceStateEnd {
  Rows read;  // [tokens, width], changed
  Rows in;    // whose first columns are those of `read`
  Rows gate;
  const float* skip = nullptr;
  uint32_t skip_width = 1;        // columns that share one
  uint32_t groups = 0;            // 0: there is no norm
  const float* weight = nullptr;  // of the norm, [width]
  float epsilon = 0;
  ActivationBlock out;  // or no data
  Rows out_f32;         // or nothing; may be `read`
};
void end_state_space(const DeviceStateEnd& params, cudaStream_t stream);

// Zeros where the columns of activations that a kernel left alone are.
void clear_padding(const ActivationBlock& block, cudaStream_t stream);

}  // namespace quire::cuda
