#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "tensor/tensor_view.h"

// The steps of drawing tokens, for sampler.cc. Pointers are to device memory.

namespace quire::cuda {

inline constexpr uint32_t kSampleParts = 16;  // of a row, in turn on as many blocks of threads
inline constexpr uint32_t kMostTop = 32;

// A change of one logit: a bias, or the penalties of a token that was seen.
struct LogitChange {
  uint32_t token;
  float bias;
  uint32_t in_answer;  // how often; 0: in the prompt only
};

// What is asked for one row.
struct SamplePlan {
  float temperature;  // 0: greedy
  uint32_t top_k;     // 0: all
  float top_p;        // 1: all
  float log_min_p;    // -inf: all
  float repetition_penalty, presence_penalty, frequency_penalty;
  uint32_t key[2];  // the seed
  uint32_t choice, position;
  uint32_t logprobs, top_logprobs;
  uint32_t skip;                             // the CPU draws it
  uint32_t first_change, biases, penalties;  // of the row, in this order
};

// What is known of a row before the draw. Candidates are ordered by a key: the larger logit first, then the lower token.
struct SampleState {
  uint64_t top_key;     // of the best candidate
  uint64_t least_key;   // of those that are left
  uint64_t mass_limit;  // a winner is certain if those before it have less; top-p alone
  uint64_t from_key;    // where the mass begins to count
  float largest;        // logit of the best, divided by the temperature
  uint32_t uncertain;
};

struct DrawPart {
  double best, second;
  uint32_t token, unused;
};

struct SampleOutcome {
  uint32_t token;
  uint32_t uncertain;
  float logprob;
  uint32_t top_count;
  uint32_t top_tokens[kMostTop];
  float top_logprobs[kMostTop];
};

struct SampleBatch {
  const SamplePlan* plans;  // [rows]
  const LogitChange* changes;
  Rows logits;
  float* changed;           // [rows, vocabulary]
  SampleState* states;      // [rows]
  DrawPart* parts;          // [rows, kSampleParts]
  SampleOutcome* outcomes;  // [rows]
  float* kept;              // [rows, vocabulary]: the logits of rows that the CPU draws from
};

void launch_sampling(const SampleBatch& batch, cudaStream_t stream);

}  // namespace quire::cuda
