// What the engine itself takes between two steps: planning, tables, settling, with a backend that computes nothing.
//   step_bench MODEL.gguf
#include <algorithm>
#include <cstdio>
#include <string>

#include "engine/engine.h"
#include "idle_backend.h"
#include "model/model_file.h"

namespace quire {
namespace {

// The median time of a step in which so many sequences draw one token each.
double median_step_us(const EngineModel& model, uint32_t sequences, uint32_t pipeline) {
  constexpr uint32_t kPrompt = 64, kSteps = 400;
  EngineOptions options{.context = kPrompt + kSteps + 64, .max_sequences = sequences};
  options.pipeline = pipeline;
  Engine engine(model, options);
  for (uint32_t s = 0; s < sequences; ++s) {
    Request request;
    for (uint32_t p = 0; p < kPrompt; ++p) request.prompt.push_back((s * 131 + p) % model.spec->vocab);
    request.max_tokens = kSteps + 32;
    request.ignore_end = true;
    engine.submit(std::move(request));
  }
  const auto all_stream = [&] {
    if (engine.scheduler().running().size() < sequences) return false;
    return std::ranges::all_of(engine.scheduler().running(),
                               [](const auto& s) { return s->answer_tokens() > 0; });
  };
  while (!all_stream()) engine.step();
  std::vector<double> times;
  for (uint32_t i = 0; i < kSteps / 2; ++i) {
    const Clock::time_point begin = Clock::now();
    engine.step();
    times.push_back(1000 * milliseconds_between(begin, Clock::now()));
  }
  std::ranges::nth_element(times, times.begin() + ptrdiff_t(times.size() / 2));
  return times[times.size() / 2];
}

// From a prompt that is cached whole to its first token.
double median_hit_us(const EngineModel& model, uint32_t tokens, uint32_t pipeline) {
  EngineOptions options{.context = tokens + 64, .max_sequences = 1};
  options.prefill_chunk = 2048;
  options.pipeline = pipeline;
  Engine engine(model, options);
  Request request;
  for (uint32_t p = 0; p < tokens; ++p) request.prompt.push_back(p * 131 % model.spec->vocab);
  request.max_tokens = 4;
  request.ignore_end = true;
  engine.run(request);
  std::vector<double> times;
  for (int i = 0; i < 9; ++i) times.push_back(1000 * engine.run(request).timings.ttft_ms);
  std::ranges::nth_element(times, times.begin() + ptrdiff_t(times.size() / 2));
  return times[times.size() / 2];
}

}  // namespace
}  // namespace quire

int main(int count, char** arguments) {
  using namespace quire;
  if (count != 2) {
    std::fprintf(stderr, "step_bench MODEL.gguf\n");
    return 2;
  }
  const std::shared_ptr<const ModelFile> file = open_model_file(arguments[1]);
  const ModelSpec spec = read_model_spec(*file);
  const Weights weights = load_weights(file, spec);
  IdleBackend backend;
  const EngineModel model{
      .spec = &spec, .weights = &weights, .backend = &backend, .tokenizer = nullptr, .end_tokens = {}};
  for (const uint32_t sequences : {1u, 64u, 256u}) {
    for (const uint32_t pipeline : {1u, 2u})
      std::printf("%3u sequences, %u step%s at a time: %7.1f us a step\n", sequences, pipeline,
                  pipeline == 1 ? "" : "s", median_step_us(model, sequences, pipeline));
  }
  for (const uint32_t pipeline : {1u, 2u})
    std::printf("a cached prompt of 32768 tokens, %u step%s at a time: %7.1f us\n", pipeline,
                pipeline == 1 ? "" : "s", median_hit_us(model, 32768, pipeline));
}
