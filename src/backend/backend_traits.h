#pragma once

#include <cstdint>
#include <string>

#include "backend/activation.h"
#include "kv/layout/kv_view.h"
#include "tensor/buffer.h"

namespace quire {

// What kernels do not take. Whoever loads a model asks first (refusal_of), so that nobody finds out in the middle of a step.
struct KernelLimits {
  static constexpr uint32_t kNone = UINT32_MAX;
  uint32_t head_dim = kNone;       // at most
  uint32_t head_dim_multiple = 1;  // of so many values
  uint32_t heads_per_kv = kNone;   // query heads of a KV head
  uint32_t dim_multiple = 1;       // of a row of the residual stream
  uint32_t experts = kNone, experts_used = kNone;
  uint32_t expert_width_multiple = 1;
  bool mixed_experts = true;  // gate and up of experts may be of different types
  uint32_t vocabulary = kNone;
  bool unequal_heads = true;          // heads of one sequence may keep different numbers of rows
  bool chunks = true;                 // AttendParams::chunk
  bool slopes = true;                 // AttendParams::slopes
  bool scaled_inputs = true;          // ShareUse::of_inputs
  bool recurrent = true;              // convolve, delta_net, state_space, selective_scan and split_heads
  uint32_t state_keys = kNone;        // of a head of a recurrent layer
  uint32_t convolution_span = kNone;  // tokens
  bool latent_rows = true;            // KvStream::key_goes_on and project_heads
  uint32_t latent_dim = kNone;        // of such a key with its value, at most
  uint32_t latent_heads = kNone;      // that have it in common
  bool chosen_rows = true;            // choose_rows, choose_blocks
  bool plain_experts = true;          // experts without a gate, and squared_relu
  bool all_gates = true;              // every nonlinearity in an MLP with an up beside it
  bool scaled_stream = true;          // NormQuantizeParams::stream_scale
  bool scaled_shares = true;          // RouteExpertsParams::share_scales
  bool norms_of_parts = true;         // norm_quantize of rows that are no tokens: heads, or parts of a row
  bool side_streams = true;           // mix_streams, cut_below, connect_streams
  bool compressed_rows = true;   // rotate_heads, compress_rows, AttendParams::beside, RopeTableParams::step
  bool experts_by_token = true;  // RouteExpertsParams::by_token
  bool rotated_keys = true;      // Backend::rotate_keys
  bool column_taps = true;       // Backend::tap_columns, and sums of project_experts
  bool own_gates = true;         // of attention, by a matrix of their own; ActivateParams::span
};

// What a backend says of itself.
struct BackendTraits {
  std::string device = "none";     // as --device names it: "cpu", "cuda:0"
  std::string description;         // for people: "8 threads", "NVIDIA H200"
  std::string kernels;             // of the set: part of the identity of the pages it computes
  uint32_t threads = 0;            // of the host that compute
  KvFormat pages = KvFormat::f16;  // of 16 bits, with which attention is the faster
  ActivationForm attention = ActivationForm::f32;  // what attention multiplies
  uint32_t pipeline = 1;                           // steps that are worth having on their way
  MemoryKind memory = MemoryKind::host;            // of weights and pages
  bool weight_scales = false;                      // products take Weight::scales
  KernelLimits limits = {};
};

}  // namespace quire
