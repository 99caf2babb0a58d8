// What moving pages between a GPU and pinned host memory takes, beside one large copy (the bus as it is): by the size of a page, in
// both directions, where they lie together and where they do not, alone and beside work in the stream of the steps. In JSON lines.
#include <algorithm>
#include <cstdio>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "backend/cuda/side_copies.h"
#include "base/clock.h"

using namespace quire;
using namespace quire::cuda;

namespace {

constexpr size_t kBytes = size_t(1) << 30;
constexpr int kRounds = 5;

struct Memory {
  DeviceBuffer device{kBytes}, scratch{kBytes};
  Buffer host;
};

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

enum class Way { in, out };
enum class Lie { together, apart };

std::vector<ByteCopy> copies_of(const Memory& memory, size_t page, Way way, Lie lie) {
  const size_t pages = kBytes / page;
  std::vector<size_t> places(pages);
  std::iota(places.begin(), places.end(), size_t(0));
  if (lie == Lie::apart) std::ranges::shuffle(places, std::mt19937(3));
  std::vector<ByteCopy> copies;
  for (size_t i = 0; i < pages; ++i) {
    std::byte* there = memory.device.as<std::byte>() + places[i] * page;
    std::byte* here = memory.host.data() + i * page;
    copies.push_back(way == Way::in ? ByteCopy{there, here, page} : ByteCopy{here, there, page});
  }
  return copies;
}

// Seconds of the copies, and of what is in the other stream meanwhile.
struct Took {
  double copies = 0, beside = 0;
};

Took measure(const Memory& memory, std::span<const ByteCopy> copies, int work_beside) {
  const Stream main;
  SideCopies aside;
  std::vector<double> took, beside;
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t mark = copies.empty() ? 0 : aside.start(copies, main.get());
    const Event begin, end;
    begin.record(main.get());
    for (int i = 0; i < work_beside; ++i) {
      CUDA_CHECK(cudaMemcpyAsync(memory.scratch.data(), memory.scratch.as<std::byte>() + kBytes / 2,
                                 kBytes / 2, cudaMemcpyDeviceToDevice, main.get()));
    }
    end.record(main.get());
    end.wait();
    beside.push_back(end.ms_since(begin) / 1000);
    if (copies.empty()) continue;
    aside.wait(mark);
    took.push_back(*aside.seconds(mark));
  }
  return {copies.empty() ? 0 : median(took), median(beside)};
}

void print(const char* what, size_t page, Way way, Lie lie, double seconds, double share) {
  std::printf(
      "{\"what\": \"%s\", \"page_kib\": %zu, \"way\": \"%s\", \"pages\": \"%s\", \"gb_s\": %.1f, "
      "\"share_of_bus\": %.3f}\n",
      what, page >> 10, way == Way::in ? "to the device" : "to the host",
      lie == Lie::together ? "together" : "apart", double(kBytes) / seconds / 1e9, share);
}

}  // namespace

int main() {
  if (!has_device()) {
    std::puts("{\"problem\": \"no CUDA device\"}");
    return 0;
  }
  Memory memory;
  for (const size_t gib : {1, 8}) {
    const Clock::time_point begin = Clock::now();
    memory.host = SideCopies::allocate(gib << 30);
    std::printf("{\"what\": \"pinning\", \"gib\": %zu, \"ms\": %.0f}\n", gib,
                milliseconds_between(begin, Clock::now()));
  }
  const double work_alone = measure(memory, {}, 40).beside;
  for (const Way way : {Way::in, Way::out}) {
    const double bus = measure(memory, copies_of(memory, kBytes, way, Lie::together), 0).copies;
    print("one copy", kBytes, way, Lie::together, bus, 1);
    for (const size_t page : {size_t(64) << 10, size_t(256) << 10, size_t(1) << 20, size_t(4) << 20}) {
      for (const Lie lie : {Lie::together, Lie::apart}) {
        const double alone = measure(memory, copies_of(memory, page, way, lie), 0).copies;
        print("pages", page, way, lie, alone, bus / alone);
      }
    }
    const Took both = measure(memory, copies_of(memory, size_t(4) << 20, way, Lie::apart), 40);
    print("pages beside work", size_t(4) << 20, way, Lie::apart, both.copies, bus / both.copies);
    std::printf("{\"what\": \"work beside\", \"way\": \"%s\", \"alone_ms\": %.2f, \"beside_ms\": %.2f}\n",
                way == Way::in ? "to the device" : "to the host", work_alone * 1000, both.beside * 1000);
  }
  return 0;
}
