// What a step is made of: milliseconds by operation, products by shape and type, of steps in which so many sequences compute one
// token each, and of a prompt.
//   step_parts_bench MODEL.gguf [SEQUENCES...]      1 and 32; 0 is a prompt of 512 tokens
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/kernel_choice.h"
#include "base/clock.h"
#include "cli/bench_phases.h"
#include "model/model_file.h"
#include "model/weights.h"

namespace quire {
namespace {

// A CPU's operations, each with a clock around it.
class TimedBackend : public CpuBackend {
 public:
  using CpuBackend::CpuBackend;

  void begin_step(const BatchView& batch, std::span<const KvGroupView> kv) override {
    ++steps_;
    CpuBackend::begin_step(batch, kv);
  }
  void embed(const EmbedParams& params) override {
    timed("embed", [&] { CpuBackend::embed(params); });
  }
  void norm_quantize(const NormQuantizeParams& params) override {
    timed("norms", [&] { CpuBackend::norm_quantize(params); });
  }
  void project(const ProjectParams& params) override {
    timed(name_of(params), [&] { CpuBackend::project(params); });
  }
  void activate(const ActivateParams& params) override {
    timed("gate and quantization", [&] { CpuBackend::activate(params); });
  }
  void rope_table(const RopeTableParams& params) override {
    timed("angles", [&] { CpuBackend::rope_table(params); });
  }
  void rope_store(const RopeStoreParams& params) override {
    timed("rotation and K, V to pages", [&] { CpuBackend::rope_store(params); });
  }
  void attend(const AttendParams& params) override {
    timed("attention", [&] { CpuBackend::attend(params); });
  }
  void logits(const LogitsParams& params) override {
    timed("logits", [&] { CpuBackend::logits(params); });
  }

  void forget() {
    seconds_.clear();
    steps_ = 0;
  }
  void print() const {
    double sum = 0;
    for (const auto& [name, seconds] : seconds_) {
      std::printf("  %-60s %8.3f ms\n", name.c_str(), 1e3 * seconds / steps_);
      sum += seconds;
    }
    std::printf("  %-60s %8.3f ms\n", "all of them", 1e3 * sum / steps_);
  }

 private:
  template <class Work>
  void timed(const std::string& name, const Work& work) {
    const Clock::time_point begin = Clock::now();
    work();
    seconds_[name] += milliseconds_between(begin, Clock::now()) / 1e3;
  }

  static std::string name_of(const ProjectParams& params) {
    std::string name = "product of";
    for (const Projection& each : params.projections)
      name += fmt::format(" {}x{} {}", each.weight.view.rows, each.weight.view.cols,
                          quire::traits(each.weight.view.dtype).name);
    return name;
  }

  std::map<std::string, double> seconds_;
  int steps_ = 0;
};

void measure(cli::PhaseRunner& runner, TimedBackend& backend, uint32_t sequences) {
  const cli::PhaseShape shape =
      sequences == 0
          ? cli::PhaseShape{.phase = cli::Phase::prefill, .tokens = 512}
          : cli::PhaseShape{.phase = cli::Phase::decode, .tokens = 24, .batch = sequences, .depth = 0};
  runner.run(shape);
  backend.forget();
  const cli::PhaseRun run = runner.run(shape);
  const double step_tokens = sequences == 0 ? shape.tokens : sequences;
  std::printf("%u sequences, %s: %.1f tok/s, a step %.3f ms\n", std::max(1u, sequences),
              std::string(cli::name(shape.phase)).c_str(), run.tokens / run.seconds,
              1e3 * run.seconds * step_tokens / run.tokens);
  backend.print();
}

}  // namespace
}  // namespace quire

int main(int count, char** arguments) {
  using namespace quire;
  if (count < 2) {
    std::fprintf(stderr, "step_parts_bench MODEL.gguf [SEQUENCES...]\n");
    return 2;
  }
  std::vector<uint32_t> sequences;
  for (int i = 2; i < count; ++i) sequences.push_back(uint32_t(std::strtoul(arguments[i], nullptr, 10)));
  if (sequences.empty()) sequences = {1, 32};
  const std::shared_ptr<const ModelFile> file = open_model_file(arguments[1]);
  const ModelSpec spec = read_model_spec(*file);
  TimedBackend backend(present_kernels().back(), std::max(1u, std::thread::hardware_concurrency()));
  Weights weights = load_weights(file, spec, backend.traits());
  prepare_weights(weights, backend);
  const KvFormat pages = backend.kernels().pages;
  cli::PhaseRunner runner(spec, weights, backend,
                          {.kv_formats = KvFormats(pages), .prefill_chunk = 512, .least_seconds = 0.4});
  for (const uint32_t each : sequences) measure(runner, backend, each);
}
