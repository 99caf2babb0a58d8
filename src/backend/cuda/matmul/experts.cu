#include "backend/cuda/activated.cuh"
#include "backend/cuda/dependent_launch.cuh"
#include "backend/cuda/matmul/expert_kernels.h"

namespace quire::cuda {
namespace {

constexpr uint32_t kSortThreads = 1024;
constexpr uint32_t kThreads = 256;

// values[i] becomes the sum of those before it, in the whole block; gives the sum of all. Both words of a number are
// summed apart.
__device__ uint2 sum_before(uint2 (&values)[kMostSortedExperts]) {
  static_assert(kMostSortedExperts == kSortThreads);
  const uint32_t i = threadIdx.x;
  uint2 sum = values[i];
  const uint2 own = sum;
  for (uint32_t apart = 1; apart < kSortThreads; apart *= 2) {
    __syncthreads();
    const uint2 before = i >= apart ? values[i - apart] : make_uint2(0, 0);
    __syncthreads();
    sum = make_uint2(sum.x + before.x, sum.y + before.y);
    values[i] = sum;
  }
  __syncthreads();
  const uint2 all = values[kSortThreads - 1];
  __syncthreads();
  values[i] = make_uint2(sum.x - own.x, sum.y - own.y);
  __syncthreads();
  return all;
}

// One block: counts, adds, deals.
__global__ void __launch_bounds__(kSortThreads) sort_pairs(const ExpertSorting sorting) {
  __shared__ uint32_t counts[kMostSortedExperts];
  __shared__ uint2 begins[kMostSortedExperts];  // of an expert: its first slot and its first item
  ptx::follow_kernel_before();
  const uint32_t expert = threadIdx.x, pairs = sorting.counts.pairs();
  counts[expert] = 0;
  __syncthreads();
  for (uint32_t pair = threadIdx.x; pair < pairs; pair += kSortThreads) {
    atomicAdd(&counts[sorting.experts[pair]], 1u);
  }
  __syncthreads();
  const uint32_t count = counts[expert], items = (count + sorting.item_tokens - 1) / sorting.item_tokens;
  begins[expert] = make_uint2(count, items);
  const uint2 all = sum_before(begins);
  const uint2 begin = begins[expert];
  for (uint32_t i = 0; i < items; ++i) {
    const uint32_t done = i * sorting.item_tokens;
    sorting.items[begin.y + i] = {expert, begin.x + done, min(sorting.item_tokens, count - done), 0};
  }
  if (threadIdx.x == 0) *sorting.item_count = all.y;
  counts[expert] = 0;
  __syncthreads();
  for (uint32_t pair = threadIdx.x; pair < pairs; pair += kSortThreads) {
    const uint32_t its_expert = sorting.experts[pair];
    const uint32_t place = atomicAdd(&counts[its_expert], 1u);
    const uint2 its_begin = begins[its_expert];
    sorting.slots[pair] = its_begin.x + place;
    sorting.pairs[its_begin.x + place] = make_uint2(pair, its_begin.y + place / sorting.item_tokens);
  }
}

// A thread copies a piece of 16 bytes: [slot][part][piece].
__global__ void __launch_bounds__(kThreads)
    gather_pieces(const ExpertSorting sorting, const ActivationBlock in, uint8_t* gathered) {
  ptx::follow_kernel_before();
  const uint32_t parts = round_up(in.cols, kBlockK) / 64;
  const size_t index = size_t(blockIdx.x) * kThreads + threadIdx.x;
  const uint32_t piece = index % 8, part = index / 8 % parts, slot = uint32_t(index / 8 / parts);
  if (slot >= sorting.counts.pairs()) return;
  const uint2 pair = sorting.pairs[slot];
  const ExpertItem item = sorting.items[pair.y];
  const uint32_t token = pair.x / sorting.counts.used, place = slot - item.first;
  const uint8_t* from = in.data + (size_t(part) * in.tokens + token) * kActivationRowBytes;
  uint8_t* to = gathered + item_activations(item.first, in.cols) +
                (size_t(part) * item.count + place) * kActivationRowBytes;
  *reinterpret_cast<uint4*>(to + (piece ^ place % 8) * 16) =
      *reinterpret_cast<const uint4*>(from + (piece ^ token % 8) * 16);
}

// A thread has two neighbours of a slot, which stay together in the order of activations.
__global__ void __launch_bounds__(kThreads)
    activate_slots(const ExpertSorting sorting, const ExpertPlain plain, uint32_t blocks) {
  ptx::follow_kernel_before();
  const uint32_t slot = blockIdx.x / blocks, col = 2 * (blockIdx.x % blocks * kThreads + threadIdx.x);
  if (col >= round_up(plain.width, kBlockK)) return;
  const ExpertItem item = sorting.items[sorting.pairs[slot].y];
  const float* row = plain.rows + size_t(slot) * plain.width;
  float value[2] = {0, 0};
#pragma unroll
  for (uint32_t i = 0; i < 2; ++i) {
    if (col + i < plain.width) value[i] = activated(plain.function, row[col + i], nullptr);
  }
  uint8_t* block = plain.next + item_activations(item.first, plain.width);
  *reinterpret_cast<uint32_t*>(block + activation_place(item.count, slot - item.first, col)) =
      ptx::pack_bf16(value[0], value[1]);
}

__global__ void __launch_bounds__(kThreads) add_rows(const ExpertSum sum, uint32_t row_blocks) {
  ptx::follow_kernel_before();
  const uint32_t token = blockIdx.x / row_blocks;
  const uint32_t col = blockIdx.x % row_blocks * kThreads + threadIdx.x;
  const uint32_t dim = uint32_t(sum.out.width);
  if (col >= dim) return;
  float total = 0;
  for (uint32_t pair = token * sum.used; pair < (token + 1) * sum.used; ++pair) {
    total = __fmaf_rn(sum.shares[pair], sum.rows[size_t(sum.slots[pair]) * dim + col], total);
  }
  sum.out.data[token * sum.out.stride + col] = total;
}

}  // namespace

void sort_by_expert(const ExpertSorting& sorting, const DeviceTraits& device, cudaStream_t stream) {
  CHECK(sorting.counts.experts <= kMostSortedExperts);
  launch(sort_pairs, {1, kSortThreads}, overlap_on(device), stream, sorting);
}

void gather_activations(const ExpertSorting& sorting, const ActivationBlock& in, uint8_t* gathered,
                        const DeviceTraits& device, cudaStream_t stream) {
  const size_t pieces = item_activations(sorting.counts.pairs(), in.cols) / 16;
  launch(gather_pieces, {unsigned((pieces + kThreads - 1) / kThreads), kThreads}, overlap_on(device), stream,
         sorting, in, gathered);
}

void activate_items(const ExpertSorting& sorting, const ExpertPlain& plain, const DeviceTraits& device,
                    cudaStream_t stream) {
  const uint32_t blocks = (round_up(plain.width, kBlockK) / 2 + kThreads - 1) / kThreads;
  launch(activate_slots, {sorting.counts.pairs() * blocks, kThreads}, overlap_on(device), stream, sorting,
         plain, blocks);
}

void add_experts(const ExpertSum& sum, const DeviceTraits& device, cudaStream_t stream) {
  const uint32_t row_blocks = uint32_t((sum.out.width + kThreads - 1) / kThreads);
  launch(add_rows, {row_blocks * uint32_t(sum.out.rows), kThreads}, overlap_on(device), stream, sum,
         row_blocks);
}

}  // namespace quire::cuda
