#include "backend/cuda/launch.cuh"
#include "backend/cuda/ptx.cuh"
#include "backend/cuda/recurrent/recurrent.h"

// A block of threads has some values of one head in one run, with their part of the state in its registers from the run's first token
// to its last. Four neighbouring threads share a value: each has every fourth key. What tokens bring is on its way to shared memory
// while those before them are computed.

namespace quire::cuda {
namespace {

constexpr uint32_t kThreads = 128;
constexpr uint32_t kValues = kThreads / kStateParts;

__device__ __forceinline__ void copy_4_async(float* shared, const float* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(ptx::shared_address(shared)), "l"(from)
               : "memory");
}

// What is in shared memory of one token: keys, queries and decays in the order of the parts, then the values, and of selective
// their steps.
template <StateRule kRule, uint32_t kOwn>
struct Stage {
  static constexpr uint32_t kPitch = kOwn + 4;  // of a part: four of them in different banks
  static constexpr uint32_t kRow = kStateParts * kPitch;
  static constexpr uint32_t kRows = kRule == StateRule::delta_of_keys ? 3 : 2;
  static constexpr uint32_t kValue = kRows * kRow;
  static constexpr uint32_t kBeta = kValue + kValues;  // one each of selective; else beta, and decay
  static constexpr uint32_t kFloats = kBeta + (kRule == StateRule::selective ? kValues : 4);
  static constexpr uint32_t kTokens = kOwn <= 32 ? 16 : 8;
  static constexpr uint32_t kBytes = 2 * kTokens * kFloats * 4;  // of two
};

template <StateRule kRule, uint32_t kOwn>
struct Recurring {
  using Layout = Stage<kRule, kOwn>;

  const DeviceRecurrence& params;
  float* const memory;
  const TokenRun run;
  const uint32_t run_index, head, first;  // of its values
  const uint32_t key_head =
      params.order == KeyOrder::tiled ? head % params.key_heads : head / (params.heads / params.key_heads);
  const uint32_t part = threadIdx.x % kStateParts, value = first + threadIdx.x / kStateParts;
  const bool is_there = value < params.values;
  StatePart<kRule, kOwn> own;

  __device__ __forceinline__ float* stage(uint32_t which, uint32_t token) const {
    return memory + (which * Layout::kTokens + token) * Layout::kFloats;
  }

  __device__ __forceinline__ void clear_stages() const {
    for (uint32_t i = threadIdx.x; i < 2 * Layout::kTokens * Layout::kFloats; i += kThreads) memory[i] = 0;
    __syncthreads();
  }

  // Begins to bring the tokens from `place` of the run on.
  __device__ __forceinline__ void bring(uint32_t which, uint32_t place) const {
    const uint32_t count = place < run.count ? min(Layout::kTokens, run.count - place) : 0;
    for (uint32_t t = 0; t < count; ++t) {
      const size_t token = run.begin + place + t;
      float* to = stage(which, t);
      for (uint32_t k = threadIdx.x; k < params.keys; k += kThreads) {
        float* at = to + k % kStateParts * Layout::kPitch + k / kStateParts;
        copy_4_async(at, params.key + token * params.key_stride + key_head * params.keys + k);
        copy_4_async(at + Layout::kRow,
                     params.query + token * params.key_stride + key_head * params.keys + k);
        if (kRule == StateRule::delta_of_keys)
          copy_4_async(at + 2 * Layout::kRow,
                       params.decay + token * params.decay_stride + head * params.keys + k);
      }
      const uint32_t v = threadIdx.x % 32;
      if (threadIdx.x < 32 && first + v < params.values)
        copy_4_async(to + Layout::kValue + v,
                     params.value + token * params.value_stride + head * params.values + first + v);
      if (kRule == StateRule::selective) {
        if (threadIdx.x / 32 == 1 && first + v < params.values)
          copy_4_async(to + Layout::kBeta + v, params.beta + token * params.beta_stride + first + v);
      } else {
        if (threadIdx.x == 32)
          copy_4_async(to + Layout::kBeta, params.beta + token * params.beta_stride + head);
        if (kRule != StateRule::delta_of_keys && threadIdx.x == 33)
          copy_4_async(to + Layout::kBeta + 1, params.decay + token * params.decay_stride + head);
      }
    }
    ptx::commit_copies();
  }

  __device__ __forceinline__ void load_state() {
    const float* before = params.state.before(run_index, head);
#pragma unroll
    for (uint32_t j = 0; j < kOwn; ++j) {
      const uint32_t k = j * kStateParts + part;
      const bool exists = is_there && k < params.keys;
      own.state[j] = exists && before != nullptr ? before[size_t(k) * params.values + value] : 0.0f;
      if constexpr (kRule == StateRule::selective)
        own.rates[j] = exists ? params.decay[size_t(value) * params.keys + k] : 0.0f;
    }
  }

  __device__ __forceinline__ void leave_state(uint32_t index) const {
    float* left = params.state.left(run_index, head, index);
#pragma unroll
    for (uint32_t j = 0; j < kOwn; ++j) {
      const uint32_t k = j * kStateParts + part;
      if (is_there && k < params.keys) left[size_t(k) * params.values + value] = own.state[j];
    }
  }

  __device__ __forceinline__ static float sum_of_all(float sum) {
    sum = sum + __shfl_xor_sync(~0u, sum, 1);  // sum_of_parts: in each of them the same bits
    return sum + __shfl_xor_sync(~0u, sum, 2);
  }

  __device__ __forceinline__ void compute(const float* given, size_t token) {
    const float* key = given + part * Layout::kPitch;
    const float *query = key + Layout::kRow, *decays = key + 2 * Layout::kRow;
    const uint32_t v = threadIdx.x / kStateParts;
    const float beta = given[Layout::kBeta + (kRule == StateRule::selective ? v : 0)];
    const float decay =
        kRule == StateRule::selective || kRule == StateRule::delta_of_keys ? 0.0f : given[Layout::kBeta + 1];
    float has = 0;
    if constexpr (is_delta(kRule)) has = sum_of_all(own.has(key, decays));
    const float added = own.added(given[Layout::kValue + v], beta, decay, has);
    const float read = sum_of_all(own.advance(key, query, decays, decay, beta, added));
    if (is_there && part == 0)
      params.out.data[token * params.out.stride + head * params.values + value] = read;
  }

  __device__ __forceinline__ void go() {
    if (params.keys != kOwn * kStateParts) clear_stages();
    bring(0, 0);
    load_state();
    const uint32_t lefts = params.state.left(run_index);
    uint32_t next = 0;  // of the states to be left
    uint32_t next_place = lefts == 0 ? ~0u : params.state.left_row(run_index, 0) - run.row;
    const auto leave_due = [&](uint32_t place) {
      while (next_place == place) {
        leave_state(next);
        next_place = ++next < lefts ? params.state.left_row(run_index, next) - run.row : ~0u;
      }
    };
    leave_due(0);
    for (uint32_t place = 0, which = 0; place < run.count; which ^= 1) {
      bring(which ^ 1, place + Layout::kTokens);
      ptx::wait_copies<1>();
      __syncthreads();
      const uint32_t count = min(Layout::kTokens, run.count - place);
      for (uint32_t t = 0; t < count; ++t) {
        compute(stage(which, t), run.begin + place + t);
        leave_due(place + t + 1);
      }
      place += count;
      __syncthreads();  // before others are brought there
    }
    ptx::wait_copies<0>();
  }
};

template <StateRule kRule, uint32_t kOwn>
__global__ void __launch_bounds__(kThreads) run_recurrence(const DeviceRecurrence params, uint32_t parts) {
  extern __shared__ __align__(16) float memory[];
  ptx::follow_kernel_before();
  const uint32_t each = params.heads * parts, index = blockIdx.x % each;
  const uint32_t run_index = blockIdx.x / each;
  Recurring<kRule, kOwn> one{.params = params,
                             .memory = memory,
                             .run = params.runs[run_index],
                             .run_index = run_index,
                             .head = index / parts,
                             .first = index % parts * kValues,
                             .own = {}};
  one.go();
}

template <StateRule kRule, uint32_t kOwn>
void launch_rule(const DeviceRecurrence& params, cudaStream_t stream) {
  const uint32_t parts = (params.values + kValues - 1) / kValues;
  launch(run_recurrence<kRule, kOwn>,
         {.blocks = params.run_count * params.heads * parts,
          .threads = kThreads,
          .shared_bytes = Stage<kRule, kOwn>::kBytes},
         Overlap::with_kernel_before, stream, params, parts);
}

template <StateRule kRule>
void launch_keys(const DeviceRecurrence& params, cudaStream_t stream) {
  if (params.keys <= 16) return launch_rule<kRule, 4>(params, stream);
  if (params.keys <= 64) return launch_rule<kRule, 16>(params, stream);
  if (params.keys <= 128) return launch_rule<kRule, 32>(params, stream);
  launch_rule<kRule, 64>(params, stream);
}

}  // namespace

void recur(const DeviceRecurrence& params, cudaStream_t stream) {
  CHECK(params.keys % kStateParts == 0 && params.keys <= kMostStateKeys);
  CHECK(params.key_heads > 0 && params.heads % params.key_heads == 0);
  CHECK(params.rule != StateRule::selective || params.heads == 1);
  if (params.run_count == 0) return;
  switch (params.rule) {
    case StateRule::delta:
      return launch_keys<StateRule::delta>(params, stream);
    case StateRule::delta_of_keys:
      return launch_keys<StateRule::delta_of_keys>(params, stream);
    case StateRule::state_space:
      return launch_keys<StateRule::state_space>(params, stream);
    case StateRule::selective:
      return launch_keys<StateRule::selective>(params, stream);
  }
}

}  // namespace quire::cuda
