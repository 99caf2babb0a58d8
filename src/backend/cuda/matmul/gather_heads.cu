#include "backend/cuda/dependent_launch.cuh"
#include "backend/cuda/matmul/expert_kernels.h"
#include "backend/cuda/matmul/head_products.h"

namespace quire::cuda {
namespace {

constexpr uint32_t kThreads = 256;

// What a head's row is cut into.
struct HeadCut {
  uint32_t tokens, heads, cols, rest, parts;
  uint32_t item_tokens, head_items;  // of an item; of a head
};

// A thread has a piece of 16 bytes: [slot][part][piece]. Those of a slot copy what is left of the head, too.
__global__ void __launch_bounds__(kThreads)
    gather(const Rows in, const Rows out, const HeadCut cut, const HeadRoom room) {
  ptx::follow_kernel_before();
  const size_t index = size_t(blockIdx.x) * kThreads + threadIdx.x;
  if (index < size_t(cut.heads) * cut.head_items) {
    const uint32_t head = uint32_t(index) / cut.head_items,
                   begin = uint32_t(index) % cut.head_items * cut.item_tokens;
    room.items[index] = {head, head * cut.tokens + begin, min(cut.item_tokens, cut.tokens - begin), 0};
    if (index == 0) *room.item_count = cut.heads * cut.head_items;
  }
  const uint32_t piece = index % 8, part = index / 8 % cut.parts, slot = uint32_t(index / 8 / cut.parts);
  if (slot >= cut.heads * cut.tokens) return;
  const uint32_t head = slot / cut.tokens, token = slot % cut.tokens;
  const float* from = in.data + token * in.stride + size_t(head) * (cut.cols + cut.rest);
  float values[8];
#pragma unroll
  for (uint32_t i = 0; i < 8; ++i) {
    const uint32_t k = part / 2 * kBlockK + k_at(part % 2 * 64 + piece * 8 + i);
    values[i] = k < cut.cols ? from[k] : 0.0f;
  }
  const uint32_t place = token % cut.item_tokens, first_token = token - place;
  const uint32_t count = min(cut.item_tokens, cut.tokens - first_token);
  uint8_t* to = room.gathered + item_activations(slot - place, cut.cols) +
                (size_t(part) * count + place) * kActivationRowBytes;
  *reinterpret_cast<uint4*>(to + (piece ^ place % 8) * 16) =
      make_uint4(ptx::pack_bf16(values[0], values[1]), ptx::pack_bf16(values[2], values[3]),
                 ptx::pack_bf16(values[4], values[5]), ptx::pack_bf16(values[6], values[7]));
  float* left = out.data + token * out.stride + size_t(head) * (out.width / cut.heads);
  for (uint32_t i = part * 8 + piece; i < cut.rest; i += 8 * cut.parts) left[i] = from[cut.cols + i];
}

}  // namespace

void gather_heads(const DeviceHeads& params, uint32_t item_tokens, const HeadRoom& room,
                  const DeviceTraits& device, cudaStream_t stream) {
  const uint32_t cols = params.weights.shape.cols, tokens = params.tokens();
  const HeadCut cut = {.tokens = tokens,
                       .heads = params.heads,
                       .cols = cols,
                       .rest = uint32_t(params.in.width / params.heads) - cols,
                       .parts = round_up(cols, kBlockK) / 64,
                       .item_tokens = item_tokens,
                       .head_items = (tokens + item_tokens - 1) / item_tokens};
  const size_t pieces = size_t(tokens) * params.heads * cut.parts * 8;
  launch(gather, {unsigned((pieces + kThreads - 1) / kThreads), kThreads}, overlap_on(device), stream,
         params.in, params.out, cut, room);
}

}  // namespace quire::cuda
