#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "backend/backend.h"
#include "backend/cuda/attention/paged_rows.h"
#include "backend/cuda/matmul/products.h"
#include "backend/cuda/matmul/tensor_core_step.h"

// What a model does between its products, on the device. Pointers, those of Rows too, are to device memory. Every number is
// computed by operations that depend on its own row alone; their number and order are fixed, so a row's bits do not depend on
// the rows beside it. The meaning is that of the operations of the same names in backend/backend.h.

namespace quire::cuda {

// The step's tokens.
struct DeviceTokens {
  const uint32_t* ids = nullptr;
  const uint32_t* positions = nullptr;  // what their rotation says
  uint32_t count = 0;
};

// Whether rows of a table in this type can be read as they are; a table of another type is converted when it is loaded.
bool can_embed(DType dtype);

struct DeviceEmbed {
  MatrixView table;
  const float* positions = nullptr;  // learned position rows, or null
  float scale = 1;
  Rows out;  // [tokens, dim]
};
void embed(const DeviceEmbed& params, const DeviceTokens& tokens, cudaStream_t stream);

struct DeviceNorm {
  NormKind kind = NormKind::none;
  float epsilon = 0;
  const float* weight = nullptr;
  const float* bias = nullptr;  // or null
};

// stream = stream_scale * (stream + branch_scale * branch_norm(branch)), then out = norm(stream), of the rows that are named alone.
// REQUIRES: no row is named twice; a stream scale of 1 where there is no branch.
struct DeviceAddNorm {
  using Order = NormQuantizeParams::Order;

  Rows stream;            // [tokens, dim], updated
  Rows branch;            // or nothing
  Rows branch_gate = {};  // [tokens, 1], or nothing
  Order order = Order::add_then_norm;
  DeviceNorm branch_norm;
  float branch_scale = 1;
  float stream_scale = 1;
  DeviceNorm norm;
  const uint32_t* rows = nullptr;  // out row i is of stream row rows[i]; null: every row
  uint32_t row_count = 0;          // of out
  ActivationBlock out;             // or no data
  Rows out_f32;                    // or nothing; without either the branch is added and nothing normed
};
void add_norm(const DeviceAddNorm& params, cudaStream_t stream);

// out = f(gate) * up, or f(gate).
struct DeviceActivate {
  Rows gate;
  Rows up;  // or nothing
  Gate function;
  ActivationBlock out;  // or no data
  Rows out_f32;         // or nothing
};
void activate(const DeviceActivate& params, cudaStream_t stream);

// cos and sin, [tokens, pairs]: the angle, its cosine and sine are computed in double precision as on the CPU.
struct DeviceRopeTable {
  float* cos = nullptr;
  float* sin = nullptr;
  const float* inverse_frequencies = nullptr;  // [pairs]
  uint32_t pairs = 0;
  float scale = 1;
};
void rope_table(const DeviceRopeTable& params, const DeviceTokens& tokens, cudaStream_t stream);

// Norms and rotates queries and keys; rounds queries for attention, writes keys and values into their pages with the bytes that the
// CPU writes. REQUIRES: heads of at most 512; where keys go on in values, 640 of both, and no norms.
struct DeviceRopeStore {
  Rows query;             // [tokens, heads * head_dim]
  Rows key;               // [tokens, kv_heads * head_dim], or nothing: only queries are there
  Rows value;             // [tokens, kv_heads * value_dim]
  uint32_t head_dim = 0;  // of a query
  DeviceNorm query_norm, key_norm;
  uint32_t query_norm_width = 0, key_norm_width = 0;  // what they are over: a head, or the whole row
  uint32_t query_norm_weights = 0,
           key_norm_weights = 0;  // how many they have: as wide, or of the whole row, or none
  HeadNormOrder norm_order = HeadNormOrder::before_rotation;
  QueryTemperature temperature = {};
  DeviceRopeTable table;  // no cos: no rotation
  RopePairing pairing = RopePairing::halves;
  PagedRows rows;
  KvFormat key_format = KvFormat::bf16, value_format = KvFormat::bf16;
  const uint32_t* token_places = nullptr;   // by token: the row of its key among those of all pages
  HalfKind query_numbers = HalfKind::bf16;  // of what meets keys; what meets values has theirs
  uint16_t* query_out = nullptr;            // [tokens, heads, head_dim]; or null
  float* query_f32 = nullptr;               // the same before rounding; or null
};
void rope_store(const DeviceRopeStore& params, const DeviceTokens& tokens, cudaStream_t stream);

// The experts of each token from its scores. REQUIRES: at most kMostExperts.
inline constexpr uint32_t kMostExperts = 512;
struct DeviceRoute {
  Rows scores;                          // [tokens, experts]
  const float* choice_bias = nullptr;   // [experts], or null
  const float* share_scales = nullptr;  // [experts], or null
  Routing routing = {};
  uint32_t used = 0;
  uint32_t* experts = nullptr;  // [tokens, used]
  float* shares = nullptr;      // [tokens, used]
};
void route(const DeviceRoute& params, cudaStream_t stream);

// logits = soft_cap * tanh(logits * scale / soft_cap); a soft cap of 0 is none.
void scale_logits(const Rows& logits, float scale, float soft_cap, cudaStream_t stream);

}  // namespace quire::cuda
