// The speed of attention on the device in the shape of an 8 B llama (32 query heads, 8 KV heads): a layer's decode in
// microseconds and as a share of what a plain read of the same memory reaches, a layer's prefill in operations (two per
// multiply-add, of the keys that a token sees).
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <random>
#include <vector>

#include "backend/cuda/attention/attention.h"
#include "backend/cuda/device_memory.h"
#include "cuda_noise.h"
#include "cuda_yardsticks.h"

namespace quire::cuda {
namespace {

constexpr uint32_t kHeads = 32, kKvHeads = 8, kPageTokens = 32;
constexpr AttentionShape kShape = {.kv_heads = kKvHeads, .group = kHeads / kKvHeads, .window = 0};

template <class Work>
double median_us(int times, int repeats, cudaStream_t stream, const Work& work) {
  work();
  std::vector<float> ms;
  for (int i = 0; i < times; ++i) {
    Event begin, end;
    begin.record(stream);
    for (int r = 0; r < repeats; ++r) work();
    end.record(stream);
    end.wait();
    ms.push_back(end.ms_since(begin));
  }
  std::sort(ms.begin(), ms.end());
  return double(ms[ms.size() / 2]) * 1e3 / repeats;
}

class Bench {
 public:
  Bench(uint32_t head_dim, KvFormat format, uint32_t pool_tokens, uint32_t most_tokens)
      : head_dim_(head_dim),
        format_(format),
        layout_(make_kv_layout(std::vector(1, shape_of(head_dim, format)), kPageTokens)),
        page_count_(pool_tokens / kPageTokens),
        pages_(page_count_ * layout_.groups[0].page_bytes),
        query_(size_t(most_tokens) * kHeads * head_dim * 2),
        out_(size_t(most_tokens) * kHeads * head_dim * 2),
        counter_(sizeof(uint32_t)) {
    fill_with_noise(pages_.as<uint16_t>(), pages_.bytes() / 2, 1, stream_.get());
    fill_with_noise(query_.as<uint16_t>(), query_.bytes() / 2, 2, stream_.get());
    counter_.fill(0);
    std::vector<uint32_t> ids(page_count_);
    std::iota(ids.begin(), ids.end(), 0u);
    std::shuffle(ids.begin(), ids.end(), std::mt19937(1));
    page_ids_ = DeviceBuffer::of(ids);
    CUDA_CHECK(cudaDeviceSynchronize());
    most_tokens_ = most_tokens;
  }

  double read_bytes_per_us() { return read_bandwidth(pages_, stream_.get()) * 1e-6; }

  void prefill(uint32_t tokens, uint32_t before) {
    const AttentionRun run = {.token = 0, .tokens = tokens, .row = before, .table = 0};
    const AttentionPlan plan = plan_tiles({&run, 1}, kShape);
    const DeviceBuffer tiles = DeviceBuffer::of(plan.tiles);
    CUDA_CHECK(cudaDeviceSynchronize());
    const AttentionWorkspace workspace = {nullptr, counter_.as<uint32_t>()};
    const double us = median_us(tokens > 10'000 ? 5 : 9, tokens > 4'000 ? 1 : 20, stream_.get(), [&] {
      launch_prefill_attention(params(0), tiles.as<PrefillTile>(), uint32_t(plan.tiles.size()), workspace,
                               stream_.get());
    });
    double operations = 0;
    for (uint32_t i = 0; i < tokens; ++i) operations += 4.0 * head_dim_ * kHeads * (before + i + 1);
    std::printf("head %3u %-4s prefill %5u after %5u: %9.1f us %5.0f TFLOP/s\n", head_dim_,
                name(format_).data(), tokens, before, us, operations / us * 1e-6);
    std::fflush(stdout);
  }

  // Layers one after the other in one graph, each with pages of its own as far as there are.
  void decode(uint32_t batch, uint32_t depth, int layers, double read_bytes_per_us) {
    std::vector<AttentionRun> runs;
    const uint32_t table = depth / kPageTokens;
    for (uint32_t s = 0; s < batch; ++s) runs.push_back({s, 1, depth - 1, s * table});
    const AttentionPlan plan = plan_attention(runs, kShape);
    const DeviceBuffer units = DeviceBuffer::of(plan.few.units);
    const DeviceBuffer partials(decode_partial_bytes(plan.few.places, kShape, plan.few.columns, head_dim_));
    const DeviceBuffer counters =
        DeviceBuffer::of(std::vector(plan.few.places * kShape.kv_heads, uint32_t{0}));
    const DeviceBuffer merges = DeviceBuffer::of(plan.few.merges);
    const AttentionWorkspace workspace = {partials.as<float>(), nullptr, counters.as<uint32_t>()};
    const DecodeWork work = {.units = units.as<DecodeUnit>(),
                             .unit_count = uint32_t(plan.few.units.size()),
                             .merges = merges.as<uint32_t>(),
                             .merge_count = uint32_t(plan.few.merges.size()),
                             .columns = plan.few.columns};
    CUDA_CHECK(cudaDeviceSynchronize());
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    CUDA_CHECK(cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeGlobal));
    for (int layer = 0; layer < layers; ++layer) {
      const uint32_t first = uint32_t(size_t(layer) * batch * table % (page_count_ - batch * table + 1));
      launch_decode_attention(params(first), work, workspace, stream_.get());
    }
    CUDA_CHECK(cudaStreamEndCapture(stream_.get(), &graph));
    CUDA_CHECK(cudaGraphInstantiate(&executable, graph, 0));
    const double us =
        median_us(9, 1, stream_.get(), [&] { CUDA_CHECK(cudaGraphLaunch(executable, stream_.get())); }) /
        layers;
    const double bytes = double(batch) * depth * kKvHeads * 2 * double(kv_row_bytes(format_, head_dim_));
    std::printf("head %3u %-4s decode %2u x %5u: %7.1f us a layer, %5.1f %% of read\n", head_dim_,
                name(format_).data(), batch, depth, us, 100 * bytes / us / read_bytes_per_us);
    std::fflush(stdout);
    CUDA_CHECK(cudaGraphExecDestroy(executable));
    CUDA_CHECK(cudaGraphDestroy(graph));
  }

 private:
  static KvLayerShape shape_of(uint32_t head_dim, KvFormat format) {
    return {.kv_heads = kKvHeads,
            .key_dim = head_dim,
            .value_dim = head_dim,
            .window = 0,
            .key_format = format,
            .value_format = format};
  }

  AttentionParams params(uint32_t first_page) {
    return {.numbers = numbers_of(format_),
            .key_format = format_,
            .value_format = format_,
            .query = query_.as<uint16_t>(),
            .query_rows = most_tokens_,
            .heads = kHeads,
            .rows = paged_rows(layout_.groups[0], 0, pages_.as<std::byte>(), page_count_),
            .page_ids = page_ids_.as<uint32_t>() + first_page,
            .window = 0,
            .scale = 1.0f / std::sqrt(float(head_dim_)),
            .soft_cap = 0,
            .sinks = nullptr,
            .out = out_.as<uint8_t>(),
            .out_tokens = most_tokens_,
            .out_f32 = nullptr};
  }

  uint32_t head_dim_, most_tokens_ = 0;
  KvFormat format_;
  KvLayout layout_;
  uint32_t page_count_;
  Stream stream_;
  DeviceBuffer pages_, query_, out_, counter_, page_ids_;
};

struct DecodeSize {
  uint32_t batch, depth;
  int layers;
};

void measure(uint32_t head_dim) {
  Bench bench(head_dim, KvFormat::bf16, 64 * 8192 * 2, 32768);
  const double read = bench.read_bytes_per_us();
  std::printf("head %3u reading memory: %.3f TB/s\n", head_dim, read * 1e-6);
  for (const uint32_t tokens : {512u, 1536u, 2048u, 8192u}) bench.prefill(tokens, 0);
  bench.prefill(1536, 6656);
  bench.prefill(32768, 0);
  for (const DecodeSize& s :
       {DecodeSize{1, 512, 64}, DecodeSize{1, 2048, 64}, DecodeSize{1, 8192, 64}, DecodeSize{1, 32768, 32},
        DecodeSize{8, 8192, 16}, DecodeSize{64, 512, 32}, DecodeSize{64, 2048, 16}, DecodeSize{64, 8192, 4}})
    bench.decode(s.batch, s.depth, s.layers, read);
}

// Codes, which are noise here: of them only the time counts.
void measure_codes(uint32_t head_dim, KvFormat format) {
  Bench bench(head_dim, format, 64 * 8192 * 2, 8192);
  const double read = bench.read_bytes_per_us();
  bench.prefill(1536, 0);
  bench.prefill(8192, 0);
  for (const DecodeSize& s :
       {DecodeSize{1, 8192, 64}, DecodeSize{8, 8192, 16}, DecodeSize{64, 2048, 16}, DecodeSize{64, 8192, 4}})
    bench.decode(s.batch, s.depth, s.layers, read);
}

}  // namespace
}  // namespace quire::cuda

int main() {
  using namespace quire;
  if (!cuda::has_device()) {
    std::puts("this machine has no CUDA device");
    return 0;
  }
  for (const uint32_t head_dim : {128u, 64u}) {
    cuda::measure(head_dim);
    for (const KvFormat format : {KvFormat::int8, KvFormat::fp8, KvFormat::q4})
      cuda::measure_codes(head_dim, format);
  }
}
