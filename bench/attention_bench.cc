// The speed of attention over pages in the shape of a 1.2 B llama (32 query heads, 8 KV heads of 64, 16 layers): a
// decoding token in milliseconds and bytes of the cache, a chunk of a prompt in operations (two per multiply-add).
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/kernel_choice.h"
#include "kv/host_kv.h"
#include "tensor/float16.h"

namespace quire {
namespace {

constexpr uint32_t kLayers = 16, kHeads = 32, kKvHeads = 8, kHeadDim = 64;

std::byte* write(KvFormat format, float value, std::byte* out) {
  if (format == KvFormat::f32) {
    *reinterpret_cast<float*>(out) = value;
    return out + 4;
  }
  *reinterpret_cast<uint16_t*>(out) = format == KvFormat::f16 ? f32_to_f16(value) : f32_to_bf16(value);
  return out + 2;
}

void measure(const CpuKernels& kernels, uint32_t threads, KvFormat format, uint32_t depth, uint32_t tokens) {
  const KvLayerShape shape{.kv_heads = kKvHeads,
                           .key_dim = kHeadDim,
                           .value_dim = kHeadDim,
                           .window = 0,
                           .key_format = format,
                           .value_format = format};
  const KvLayout layout = make_kv_layout(std::vector(kLayers, shape));
  HostKv kv(layout, pages_for(layout, depth + tokens, depth + tokens, 1));
  PageTable table = kv.make_table();
  if (!kv.reserve(table, depth + tokens)) std::abort();
  const PageTable* tables[] = {&table};
  KvTables flat;
  const std::vector<KvGroupView> groups = kv.view(tables, flat);
  uint32_t state = 1;
  const auto random = [&] { return float(int32_t(state = state * 1664525u + 1013904223u)) * 0x1p-31f; };
  for (uint32_t page = 0; page * kPageTokens < depth + tokens; ++page) {
    std::byte* at = groups[0].page(0, page);
    for (std::byte* end = at + layout.groups[0].page_bytes; at < end;) at = write(format, random(), at);
  }
  constexpr size_t kWidth = size_t(kHeads) * kHeadDim;
  std::vector<float> query(tokens * kWidth), out(tokens * kWidth);
  for (float& value : query) value = random();
  std::vector<TokenId> ids(tokens, 0);
  std::vector<uint32_t> positions, run_of_token(tokens, 0);
  for (uint32_t i = 0; i < tokens; ++i) positions.push_back(depth + i);
  const TokenRun run{0, tokens, depth};
  CpuBackend backend(kernels, threads);
  backend.begin_step({ids, positions, run_of_token, {&run, 1}, {}}, {});
  double best = 1e9, best_busy = 1e9;
  for (double spent = 0; spent < 1.0;) {
    const auto begin = std::chrono::steady_clock::now();
    const std::clock_t busy_begin = std::clock();
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      Activation result;
      result.f32 = {out.data(), tokens, kWidth, kWidth};
      backend.attend({.query = {query.data(), tokens, kWidth, kWidth},
                      .heads = kHeads,
                      .kv = {&groups[0], &layout.groups[0].layers[layer]},
                      .scale = 0.125f,
                      .soft_cap = 0,
                      .sinks = {},
                      .out = result});
    }
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    best = std::min(best, seconds);
    best_busy = std::min(best_busy, double(std::clock() - busy_begin) / CLOCKS_PER_SEC / threads);
    spent += seconds;
  }
  const double rows = tokens * (depth + 0.5 * (tokens + 1));
  const double operations = 4.0 * kLayers * double(kWidth) * rows;
  const double bytes = double(layout.bytes_per_token()) * (depth + tokens);
  std::printf("%-8s %-4s depth %5u, %3u tokens: %8.2f ms (%.2f of each core), %5.1f GFLOPS, %5.1f GB/s\n",
              kernels.name, name(format).data(), depth, tokens, best * 1e3, best_busy * 1e3,
              operations / best * 1e-9, bytes / best * 1e-9);
}

}  // namespace
}  // namespace quire

int main(int count, char** arguments) {
  using namespace quire;
  const CpuKernels kernels = kernels_named(count > 1 ? arguments[1] : "auto");
  const uint32_t threads = count > 2 ? uint32_t(std::atoi(arguments[2])) : 2;
  for (KvFormat format : {KvFormat::f16, KvFormat::bf16, KvFormat::f32}) {
    for (uint32_t depth : {512u, 4096u, 16384u}) measure(kernels, threads, format, depth, 1);
    for (uint32_t depth : {0u, 8128u}) measure(kernels, threads, format, depth, 64);
  }
}
