#include <filesystem>
#include <fstream>
#include <iostream>

#include "base/error.h"
#include "base/thread_pool.h"
#include "cli/bench_phases.h"
#include "cli/bench_report.h"
#include "cli/commands.h"
#include "cli/model_options.h"
#include "cli/progress.h"

namespace quire::cli {
namespace {

constexpr int kRepeats = 3;  // of a run around which the machine was unsteady
constexpr uint32_t kMostTokens = 1u << 24;

struct BenchCommand {
  ModelChoice model;
  std::optional<uint32_t> threads;
  mutable std::string kv;  // empty: what suits the kernels
  std::string kernels = "auto";
  std::string device = "auto";
  uint32_t prefill_chunk = 512;
  std::vector<uint32_t> prompts;  // empty: what fits of the default
  std::optional<uint32_t> generated;
  std::vector<uint32_t> batches = {1, 16};
  std::vector<uint32_t> depths = {0};
  double seconds = 2;
  double cost_per_hour = 0;
  bool json = false;
  std::string svg;

  void operator()() const {
    const std::unique_ptr<Backend> backend =
        open_backend({.device = device, .kernels = kernels, .threads = threads.value_or(usable_cpus())});
    if (kv.empty()) kv = usual_kv(*backend);
    const KvFormats formats = parse_kv_formats(kv);
    const std::shared_ptr<const ModelFile> file = open_model_file(model.path());
    const ModelSpec spec = read_model_spec(*file);
    const std::vector<PhaseShape> shapes = phases(spec);
    Weights weights = load_weights(file, spec, backend->traits());
    prepare_weights(weights, *backend);
    PhaseRunner runner(spec, weights, *backend,
                       {.kv_formats = formats, .prefill_chunk = prefill_chunk, .least_seconds = seconds});
    check_memory(runner, shapes, *backend);
    std::ofstream svg_file;  // opened before: nobody wants to wait for a measurement that cannot be written
    if (!svg.empty()) {
      svg_file.open(svg);
      if (!svg_file) throw Error("cannot write {}", svg);
    }

    const BackendTraits traits = backend->traits();
    BenchReport report{.model = std::filesystem::path(file->path()).filename().string(),
                       .weight_bytes = weights.bytes,
                       .packed_bytes = weights.packed_bytes,
                       .kernels = traits.kernels,
                       .kv_format = kv,
                       .kv_bytes_per_token = runner.layout().bytes_per_token(),
                       .device = traits.threads > 0 ? counted(traits.threads, "thread") : traits.description,
                       .threads = traits.threads,
                       .cost_per_hour = cost_per_hour,
                       .machine = {},
                       .results = {}};
    measure(runner, shapes, *backend, report);
    if (json) {
      std::cout << report.json().dump(2, ' ', false, OrderedJson::error_handler_t::replace) << "\n";
    } else {
      std::cout << report.text();
    }
    if (svg_file.is_open() && !(svg_file << report.svg() << std::flush)) throw Error("cannot write {}", svg);
  }

  std::vector<PhaseShape> phases(const ModelSpec& spec) const {
    const uint32_t generated_tokens = generated.value_or(std::min(64u, spec.context));
    std::vector<PhaseShape> shapes;
    for (uint32_t prompt : prompts.empty() ? std::vector{std::min(512u, spec.context)} : prompts) {
      if (prompt > 0) shapes.push_back({Phase::prefill, prompt, 1, 0});
    }
    for (uint32_t depth : depths) {
      for (uint32_t batch : batches) {
        if (generated_tokens > 0) shapes.push_back({Phase::decode, generated_tokens, batch, depth});
      }
    }
    if (shapes.empty()) wrong_usage("--prompt 0 and --gen 0 leave nothing to measure");
    for (const PhaseShape& shape : shapes) {
      if (uint64_t(shape.depth) + shape.tokens <= spec.context) continue;
      wrong_usage("{} of {} tokens at depth {} is more than the model's context of {}", name(shape.phase),
                  shape.tokens, shape.depth, spec.context);
    }
    return shapes;
  }

  static void check_memory(const PhaseRunner& runner, const std::vector<PhaseShape>& shapes,
                           const Backend& backend) {
    const size_t available = backend.available_memory();
    for (const PhaseShape& shape : shapes) {
      if (available == 0 || runner.kv_bytes(shape) <= available) continue;
      throw Error("{} of {} at depth {} needs {} of KV cache, but {} are available", name(shape.phase),
                  counted(shape.batch, "sequence"), shape.depth, human_bytes(runner.kv_bytes(shape)),
                  human_bytes(available));
    }
  }

  void measure(PhaseRunner& runner, const std::vector<PhaseShape>& shapes, const Backend& backend,
               BenchReport& report) const {
    Progress progress("measuring");
    progress.update(0, shapes.size());
    const std::unique_ptr<Yardstick> yardstick = backend.make_yardstick({.seconds = seconds});
    MachineRates before = yardstick->measure();
    report.machine = before;
    for (const PhaseShape& shape : shapes) {
      std::optional<BenchResult> steadiest;
      for (int repeat = 0; repeat <= kRepeats && !(steadiest && steadiest->steady()); ++repeat) {
        const PhaseRun run = runner.run(shape);
        const MachineRates after = yardstick->measure();
        const double change = largest_change(before, after);
        if (!steadiest || change < steadiest->change)
          steadiest = {shape, run, best_of(before, after), change};
        report.machine = best_of(report.machine, after);
        before = after;
      }
      report.results.push_back(*steadiest);
      progress.update(report.results.size(), shapes.size());
    }
    // Limits that were measured while something else had the machine would flatter.
    for (BenchResult& result : report.results) {
      if (!result.steady()) result.limits = report.machine;
    }
  }
};

}  // namespace

void add_bench(CLI::App& app) {
  auto command = std::make_shared<BenchCommand>();
  CLI::App* bench = app.add_subcommand(
      "bench", "prefill and decode by length and batch, as shares of the machine's limits");
  command->model.add_to(*bench);
  const auto list = [&](const char* option, std::vector<uint32_t>& values, uint32_t least, uint32_t most,
                        const char* what) {
    bench->add_option(option, values, what)->delimiter(',')->check(CLI::Range(least, most));
  };
  list("--prompt", command->prompts, 0, kMostTokens,
       "tokens to prefill, e.g. 512,2048; 0: no prefill (default: 512)");
  bench->add_option("--gen", command->generated, "tokens to decode; 0: no decode (default: 64)")
      ->check(CLI::Range(0u, kMostTokens));
  list("--batch", command->batches, 1, 4096, "sequences decoded side by side (default: 1,16)");
  list("--depth", command->depths, 0, kMostTokens, "tokens cached before decoding begins (default: 0)");
  bench
      ->add_option("--threads", command->threads,
                   "threads that compute (default: the CPUs this process may use)")
      ->check(CLI::Range(1u, 1024u));
  bench->add_option("--kv", command->kv, kKvHelp)->capture_default_str();
  bench->add_option("--kernels", command->kernels, "auto, exact, scalar, or an instruction set")
      ->capture_default_str()
      ->check(CLI::IsMember(all_kernel_names()));
  add_device_to(*bench, command->device);
  bench->add_option("--prefill-chunk", command->prefill_chunk, "most prompt tokens in one step")
      ->capture_default_str()
      ->check(CLI::Range(1u, 1u << 20));
  bench
      ->add_option("--seconds", command->seconds,
                   "how long each limit, and each phase at the least, is measured")
      ->capture_default_str()
      ->check(CLI::Range(0.001, 600.0));
  bench
      ->add_option("--cost", command->cost_per_hour,
                   "what the machine costs an hour, in any money: a million tokens' price is printed")
      ->check(CLI::Range(1e-9, 1e9));
  bench->add_flag("--json", command->json, "print one JSON object");
  bench->add_option("--svg", command->svg, "a file to draw a roofline plot to");
  bench->callback([command] { (*command)(); });
}

}  // namespace quire::cli
