#include "backend/cuda/launch.cuh"
#include "backend/cuda/ptx.cuh"
#include "backend/cuda/sampling/sample_kernels.h"
#include "backend/cuda/sampling/sample_select.cuh"

namespace quire::cuda {
namespace {

__device__ __forceinline__ CandidateRow model_row(const SampleBatch& batch, uint32_t row) {
  return {batch.logits.data + row * batch.logits.stride, uint32_t(batch.logits.width), 1.0f};
}

// The row that is drawn from: with bias and penalties, if there are any, and temperature.
__device__ __forceinline__ CandidateRow drawn_row(const SampleBatch& batch, uint32_t row) {
  const SamplePlan& plan = batch.plans[row];
  CandidateRow candidates = model_row(batch, row);
  if (plan.biases + plan.penalties > 0) candidates.logits = batch.changed + row * batch.logits.width;
  if (plan.temperature > 0) candidates.temperature = plan.temperature;
  return candidates;
}

// REQUIRES: a token is at most once among the biases, and at most once among the penalties.
__global__ void __launch_bounds__(kSampleThreads) change_logits(const SampleBatch batch) {
  ptx::follow_kernel_before();
  const uint32_t row = blockIdx.x;
  const SamplePlan plan = batch.plans[row];
  if (plan.skip != 0 || plan.biases + plan.penalties == 0) return;
  const CandidateRow from = model_row(batch, row);
  float* to = batch.changed + row * batch.logits.width;
  for (uint32_t i = threadIdx.x; i < from.count; i += kSampleThreads) to[i] = from.logit(i);
  __syncthreads();
  const LogitChange* changes = batch.changes + plan.first_change;
  for (uint32_t i = threadIdx.x; i < plan.biases; i += kSampleThreads)
    to[changes[i].token] += changes[i].bias;
  __syncthreads();
  changes += plan.biases;
  for (uint32_t i = threadIdx.x; i < plan.penalties; i += kSampleThreads) {
    float& logit = to[changes[i].token];
    float value = logit > 0 ? logit / plan.repetition_penalty : logit * plan.repetition_penalty;
    if (changes[i].in_answer > 0)
      value -= plan.presence_penalty + plan.frequency_penalty * float(changes[i].in_answer);
    logit = value;
  }
}

// Where top-p cuts, up to what may differ from the CPU, which adds f32 one after the other from the largest on: an addition
// loses at most half a unit of the sum's last place, and never more than the summand.
__device__ __forceinline__ void limit_mass(const CandidateRow& row, float top_p, SampleState& state,
                                           SelectShared& shared, bool& uncertain) {
  uint64_t own = 0;
  row.each([&](float logit, uint64_t key, uint32_t) {
    if (key >= state.from_key) own += mass_of(logit, state.largest);
  });
  const uint64_t all = sum_of_threads(own, shared);
  own = 0;
  row.each([&](float logit, uint64_t key, uint32_t) {
    if (key >= state.from_key) own += min(mass_of(logit, state.largest), all >> 24);
  });
  const double doubt = 2.0 * double(sum_of_threads(own, shared)) + double(all >> 20) + double(row.count);
  const double cut = double(top_p) * double(all), beyond = cut + doubt;
  state.mass_limit = cut > doubt ? uint64_t(cut - doubt) : 0;
  if (beyond < double(all))
    state.least_key = select_key(row, state.largest, state.from_key, Weight64::mass,
                                 min(uint64_t(beyond) + 1, all), shared, uncertain);
}

__global__ void __launch_bounds__(kSampleThreads) filter_rows(const SampleBatch batch) {
  ptx::follow_kernel_before();
  extern __shared__ __align__(16) uint8_t memory[];
  SelectShared& shared = *reinterpret_cast<SelectShared*>(memory);
  const SamplePlan plan = batch.plans[blockIdx.x];
  if (plan.skip != 0) return;
  const CandidateRow row = drawn_row(batch, blockIdx.x);
  uint64_t best = 0;
  row.each([&](float, uint64_t key, uint32_t) { best = max(best, key); });
  SampleState state = {};
  state.top_key = largest_of_threads(best, shared);
  state.largest = row.logit(token_of(state.top_key));
  state.mass_limit = ~uint64_t(0);
  bool uncertain = false;
  if (plan.temperature > 0) {
    uncertain = !isfinite(state.largest);
    if (!uncertain && plan.top_k > 0 && plan.top_k < row.count)
      state.least_key = select_key(row, state.largest, 0, Weight64::one, plan.top_k, shared, uncertain);
    state.from_key = state.least_key;
    if (!uncertain && plan.top_p < 1) limit_mass(row, plan.top_p, state, shared, uncertain);
  }
  state.uncertain = uncertain ? 1 : 0;
  if (threadIdx.x == 0) batch.states[blockIdx.x] = state;
}

// Philox 4x32-10, as base/philox.h; the first two of its numbers.
__device__ __forceinline__ uint2 philox(uint32_t token, const SamplePlan& plan) {
  uint32_t c0 = token, c1 = plan.position, c2 = plan.choice, c3 = 0, k0 = plan.key[0], k1 = plan.key[1];
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t(0xD2511F53u) * c0, b = uint64_t(0xCD9E8D57u) * c2;
    c0 = uint32_t(b >> 32) ^ c1 ^ k0;
    c1 = uint32_t(b);
    c2 = uint32_t(a >> 32) ^ c3 ^ k1;
    c3 = uint32_t(a);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {c0, c1};
}

__device__ __forceinline__ double noisy(float logit, uint32_t token, const SamplePlan& plan) {
  const uint2 random = philox(token, plan);
  const uint64_t bits = (uint64_t(random.x) << 32 | random.y) >> 11;
  const double uniform = (double(bits) + 0.5) * 0x1p-53;
  return double(logit) - log(-log(uniform));
}

// The two best of some draws.
struct TwoBest {
  double best = -INFINITY, second = -INFINITY;
  uint32_t token = ~0u;

  __device__ __forceinline__ void take(double score, double next, uint32_t other) {
    if (score > best || (score == best && other < token)) {
      second = fmax(best, next);
      best = score;
      token = other;
    } else {
      second = fmax(second, score);
    }
  }
  __device__ __forceinline__ void share() {
#pragma unroll
    for (int width = 16; width > 0; width /= 2) {
      const double score = __shfl_xor_sync(~0u, best, width), next = __shfl_xor_sync(~0u, second, width);
      take(score, next, __shfl_xor_sync(~0u, token, width));
    }
  }
};

constexpr uint32_t kDrawThreads = 256;

__global__ void __launch_bounds__(kDrawThreads) draw_parts(const SampleBatch batch) {
  ptx::follow_kernel_before();
  const uint32_t row = blockIdx.x / kSampleParts, part = blockIdx.x % kSampleParts;
  const SamplePlan plan = batch.plans[row];
  const SampleState state = batch.states[row];
  if (plan.skip != 0 || plan.temperature <= 0 || state.uncertain != 0) return;
  const CandidateRow candidates = drawn_row(batch, row);
  const float least = state.largest + plan.log_min_p;
  TwoBest two;
  for (uint32_t token = part * kDrawThreads + threadIdx.x; token < candidates.count;
       token += kSampleParts * kDrawThreads) {
    const float logit = candidates.logit(token);
    const uint64_t key = key_of(logit, token);
    if (key < state.least_key || (logit < least && key != state.top_key)) continue;
    two.take(noisy(logit, token, plan), -INFINITY, token);
  }
  two.share();
  __shared__ TwoBest warps[kDrawThreads / 32];
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = two;
  __syncthreads();
  if (threadIdx.x > 0) return;
  for (uint32_t w = 1; w < kDrawThreads / 32; ++w) two.take(warps[w].best, warps[w].second, warps[w].token);
  batch.parts[blockIdx.x] = {two.best, two.second, two.token, 0};
}

__device__ __forceinline__ double sum_of_threads(double value, SelectShared& shared) {
  auto* warps = reinterpret_cast<double*>(shared.warps);
#pragma unroll
  for (int width = 16; width > 0; width /= 2) value += __shfl_xor_sync(~0u, value, width);
  __syncthreads();
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  double sum = 0;
  for (uint32_t w = 0; w < kSampleThreads / 32; ++w) sum += warps[w];
  return sum;
}

// The winner of a row, and whether the CPU's is the same beyond doubt.
__device__ __forceinline__ uint32_t settle(const SampleBatch& batch, uint32_t row, SelectShared& shared,
                                           bool& uncertain) {
  const SampleState state = batch.states[row];
  if (batch.plans[row].temperature <= 0) return token_of(state.top_key);
  TwoBest two;
  for (uint32_t i = 0; i < kSampleParts; ++i) {
    const DrawPart& part = batch.parts[row * kSampleParts + i];
    two.take(part.best, part.second, part.token);
  }
  uncertain = uncertain || !(two.best - two.second > 1e-9 + fabs(two.best) * 1e-14);
  if (uncertain || batch.plans[row].top_p >= 1) return two.token;
  const CandidateRow candidates = drawn_row(batch, row);
  const uint64_t winner = key_of(candidates.logit(two.token), two.token);
  uint64_t own = 0;
  candidates.each([&](float logit, uint64_t key, uint32_t) {
    if (key > winner) own += mass_of(logit, state.largest);
  });
  const uint64_t before = sum_of_threads(own, shared);
  uncertain = winner != state.top_key && before >= state.mass_limit;
  return two.token;
}

// log-probabilities of the model itself.
struct Logprobs {
  double log_sum, doubt;

  __device__ __forceinline__ float of(float logit, uint32_t& uncertain) const {
    const double value = double(logit) - log_sum;
    if (!(float(value - doubt) == float(value + doubt))) atomicExch(&uncertain, 1u);
    return float(value);
  }
};

__device__ __forceinline__ void add_logprobs(const SampleBatch& batch, SelectShared& shared,
                                             SampleOutcome& out) {
  const CandidateRow row = model_row(batch, blockIdx.x);
  uint64_t best = 0;
  row.each([&](float, uint64_t key, uint32_t) { best = max(best, key); });
  const float largest = row.logit(token_of(largest_of_threads(best, shared)));
  double own = 0;
  row.each([&](float logit, uint64_t, uint32_t) { own += exp(double(logit - largest)); });
  // The CPU adds one after the other: its sum is off by as many roundings.
  const Logprobs logprobs = {double(largest) + log(sum_of_threads(own, shared)),
                             (row.count + 64) * 0x1p-52 + 1e-13};
  if (threadIdx.x == 0) out.logprob = logprobs.of(row.logit(out.token), out.uncertain);
  const uint32_t count = min(batch.plans[blockIdx.x].top_logprobs, row.count);
  if (count == 0) return;
  bool uncertain = false;
  const uint64_t least = select_key(row, largest, 0, Weight64::one, count, shared, uncertain);
  if (threadIdx.x == 0) {
    shared.listed = 0;
    out.top_count = count;
    if (uncertain) out.uncertain = 1;
  }
  __syncthreads();
  if (uncertain) return;
  row.each([&](float, uint64_t key, uint32_t) {
    if (key >= least) shared.keys[atomicAdd(&shared.listed, 1)] = key;
  });
  __syncthreads();
  if (threadIdx.x >= count) return;
  const uint64_t key = shared.keys[threadIdx.x];
  uint32_t rank = 0;
  for (uint32_t i = 0; i < count; ++i) rank += shared.keys[i] > key;
  out.top_tokens[rank] = token_of(key);
  out.top_logprobs[rank] = logprobs.of(row.logit(token_of(key)), out.uncertain);
}

__global__ void __launch_bounds__(kSampleThreads) finish_rows(const SampleBatch batch) {
  ptx::follow_kernel_before();
  extern __shared__ __align__(16) uint8_t memory[];
  SelectShared& shared = *reinterpret_cast<SelectShared*>(memory);
  const SamplePlan& plan = batch.plans[blockIdx.x];
  if (plan.skip != 0) return;
  SampleOutcome& out = batch.outcomes[blockIdx.x];
  bool uncertain = batch.states[blockIdx.x].uncertain != 0;
  const uint32_t token = uncertain ? 0 : settle(batch, blockIdx.x, shared, uncertain);
  if (threadIdx.x == 0) {
    out.token = token;
    out.uncertain = uncertain ? 1 : 0;
    out.logprob = 0;
    out.top_count = 0;
  }
  __syncthreads();
  if (!uncertain && plan.logprobs != 0) add_logprobs(batch, shared, out);
}

__global__ void __launch_bounds__(kSampleThreads) keep_rows(const SampleBatch batch) {
  ptx::follow_kernel_before();
  const uint32_t row = blockIdx.x / kSampleParts;
  if (batch.plans[row].skip == 0 && batch.outcomes[row].uncertain == 0) return;
  const size_t width = batch.logits.width;
  for (size_t i = blockIdx.x % kSampleParts * kSampleThreads + threadIdx.x; i < width;
       i += kSampleParts * kSampleThreads)
    batch.kept[row * width + i] = batch.logits.data[row * batch.logits.stride + i];
}

}  // namespace

void launch_sampling(const SampleBatch& batch, cudaStream_t stream) {
  const uint32_t rows = uint32_t(batch.logits.rows);
  if (rows == 0) return;
  const LaunchShape whole = {.blocks = rows, .threads = kSampleThreads, .shared_bytes = sizeof(SelectShared)};
  launch(change_logits, {.blocks = rows, .threads = kSampleThreads}, Overlap::with_kernel_before, stream,
         batch);
  launch(filter_rows, whole, Overlap::with_kernel_before, stream, batch);
  launch(draw_parts, {.blocks = rows * kSampleParts, .threads = kDrawThreads}, Overlap::with_kernel_before,
         stream, batch);
  launch(finish_rows, whole, Overlap::with_kernel_before, stream, batch);
  launch(keep_rows, {.blocks = rows * kSampleParts, .threads = kSampleThreads}, Overlap::with_kernel_before,
         stream, batch);
}

}  // namespace quire::cuda
