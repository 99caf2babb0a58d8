// Many clients on one model: throughput and the gaps between tokens, as the engine's own account has them.
//
//   serving_bench MODEL --hit TOKENS [--threads N]
//   serving_bench MODEL [--clients 32] [--rate 0] [--prefix 1000] [--tail 32] [--gen 32] [--threads N] [--chunk 512]
//                       [--itl-target MS] [--long TOKENS] [--pipeline STEPS]
//
// All clients come at once, or with --rate so many a second at random times, and share the first `prefix` tokens; each has `tail` tokens of its own. With --long a prompt of
// so many tokens arrives while the others stream. With --hit one prompt is asked six times: how long its first token takes
// when all of it is cached, beside one step of decode at that length. Steps on their way at a time are as many as suit the device, or --pipeline. Prints one JSON object.
#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <map>
#include <random>
#include <string>
#include <thread>

#include "base/error.h"
#include "base/json.h"
#include "base/thread_pool.h"
#include "engine/engine.h"
#include "engine/loaded_model.h"

namespace quire {
namespace {

std::vector<TokenId> random_tokens(uint64_t state, size_t count, uint32_t vocab) {
  std::vector<TokenId> tokens;
  for (size_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    tokens.push_back(TokenId((state >> 33) % vocab));
  }
  return tokens;
}

double percentile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1, size_t(share * double(values.size())))];
}

// What a server on this device would take.
EngineOptions usual_options(const LoadedModel& model, std::map<std::string, double>& options) {
  EngineOptions result;
  result.prefill_chunk = uint32_t(options["--chunk"]);
  result.kv_formats = model.backend().traits().pages;
  result.pipeline =
      options["--pipeline"] > 0 ? uint32_t(options["--pipeline"]) : model.backend().traits().pipeline;
  return result;
}

int bench_hit(const std::string& path, std::map<std::string, double>& options) {
  const uint32_t tokens = uint32_t(options["--hit"]);
  LoadedModel model(path, {.context = tokens + 16, .threads = uint32_t(options["--threads"])});
  EngineOptions engine_options = usual_options(model, options);
  engine_options.context = tokens + 16;
  Engine engine(model.engine_model(), engine_options);
  Request request;
  request.prompt = random_tokens(1, tokens, model.spec().vocab);
  request.sampling.temperature = 0;
  request.max_tokens = 9;
  request.ignore_end = true;
  const Answer cold = engine.run(request), warm = engine.run(request);
  std::vector<double> hits = {warm.timings.ttft_ms};
  const RequestAccount::Chunk& first = warm.account.prefill.front();
  for (int i = 0; i < 4; ++i) hits.push_back(engine.run(request).timings.ttft_ms);
  const OrderedJson result = {{"prompt_tokens", tokens},
                              {"cold_ttft_ms", cold.timings.ttft_ms},
                              {"hit_ttft_ms", percentile(hits, 0.5)},
                              {"hits_ttft_ms", hits},
                              {"cached_tokens", warm.account.cached_tokens},
                              {"first_step_begins_ms", first.at_ms},
                              {"first_step_ms", first.took_ms},
                              {"decode_step_ms", warm.timings.itl_ms_p50},
                              {"same_tokens", cold.tokens == warm.tokens},
                              {"kv_bytes", engine.kv().stats().capacity_bytes}};
  std::cout << result.dump(1) << "\n";
  return 0;
}

// Milliseconds from the start: all at once, or at random with so many a second.
std::vector<double> arrival_times(uint32_t count, double per_second) {
  std::mt19937_64 random(1);
  std::exponential_distribution<double> gap(per_second > 0 ? per_second : 1.0);
  std::vector<double> times(count, 0.0);
  for (uint32_t i = 1; per_second > 0 && i < count; ++i) times[i] = times[i - 1] + 1000 * gap(random);
  return times;
}

int bench(const std::string& path, std::map<std::string, double>& options) {
  const auto number = [&](const char* name) { return uint32_t(options[name]); };
  const uint32_t clients = number("--clients"), prefix = number("--prefix"), tail = number("--tail"),
                 gen = number("--gen");
  const uint32_t longest = std::max(prefix + tail + gen, number("--long") + 8);
  LoadedModel model(path, {.context = longest, .threads = number("--threads")});
  EngineOptions engine_options = usual_options(model, options);
  engine_options.context = longest;
  engine_options.max_sequences = clients + 1;
  engine_options.itl_target_ms = options["--itl-target"];
  const KvLayout layout = make_kv_layout(kv_shapes(model.spec(), engine_options.kv_formats));
  engine_options.kv_bytes =
      kv_bytes(layout, pages_for(layout, prefix + number("--long") + clients * (tail + gen + 64) + 64,
                                 engine_options.prefill_chunk, 1));
  Engine engine(model.engine_model(), engine_options);

  const std::vector<TokenId> shared = random_tokens(1, prefix, model.spec().vocab);
  const Clock::time_point begin = Clock::now();
  const std::vector<double> arrivals = arrival_times(clients, options["--rate"]);
  uint32_t arrived = 0;
  const auto admit = [&](uint32_t c) {
    Request request;
    request.prompt = shared;
    for (TokenId token : random_tokens(100 + c, tail, model.spec().vocab)) request.prompt.push_back(token);
    request.sampling.temperature = 0;
    request.max_tokens = gen;
    request.ignore_end = true;
    engine.submit(std::move(request));
  };
  bool long_waits = number("--long") > 0;
  std::vector<double> gaps, first_tokens, gaps_during_long;
  uint32_t cached = 0;
  size_t answered = 0;
  double done_ms = 0;
  std::optional<SequenceId> long_id;
  for (;;) {
    const double now_ms = milliseconds_between(begin, Clock::now());
    while (arrived < clients && arrivals[arrived] <= now_ms) admit(arrived++);
    if (!engine.step()) {
      if (arrived == clients) break;
      std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(arrivals[arrived] - now_ms));
      continue;
    }
    const auto& running = engine.scheduler().running();
    if (long_waits && std::ranges::all_of(running, [](const auto& s) { return s->answer_tokens() >= 2; }) &&
        engine.scheduler().waiting().empty()) {
      Request request;
      request.prompt = random_tokens(7, number("--long"), model.spec().vocab);
      request.max_tokens = 1;
      request.ignore_end = true;
      long_id = engine.submit(std::move(request));
      long_waits = false;
    }
    for (auto& [id, answer] : engine.take_answers()) {
      if (long_id && id == *long_id) continue;
      ++answered;
      done_ms = milliseconds_between(begin, Clock::now());
      cached += answer.account.cached_tokens;
      first_tokens.push_back(answer.timings.ttft_ms);
      for (const RequestAccount::Gap& gap : answer.account.gaps) {
        gaps.push_back(gap.ms);
        if (gap.cause == GapCause::prefill_of_another) gaps_during_long.push_back(gap.ms);
      }
    }
  }
  const OrderedJson result = {{"clients", clients},
                              {"prefix_tokens", prefix},
                              {"tail_tokens", tail},
                              {"answer_tokens", gen},
                              {"answered", answered},
                              {"seconds", done_ms / 1000},
                              {"answer_tok_s", 1000.0 * clients * gen / done_ms},
                              {"cached_tokens", cached},
                              {"ttft_ms_p50", percentile(first_tokens, 0.5)},
                              {"ttft_ms_p99", percentile(first_tokens, 0.99)},
                              {"gap_ms_p50", percentile(gaps, 0.5)},
                              {"gap_ms_p99", percentile(gaps, 0.99)},
                              {"gap_ms_p99_beside_prompts", percentile(gaps_during_long, 0.99)},
                              {"preemptions", engine.scheduler().preemptions()},
                              {"kv_capacity_bytes", engine.kv().stats().capacity_bytes}};
  std::cout << result.dump(1) << "\n";
  return 0;
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  std::map<std::string, double> options = {{"--clients", 32},
                                           {"--prefix", 1000},
                                           {"--rate", 0},
                                           {"--chunk", 512},
                                           {"--tail", 32},
                                           {"--gen", 32},
                                           {"--threads", quire::usable_cpus()},
                                           {"--itl-target", 0},
                                           {"--long", 0},
                                           {"--pipeline", 0},
                                           {"--hit", 0}};
  std::string model;
  for (int i = 1; i < argc; ++i) {
    if (options.contains(argv[i]) && i + 1 < argc) {
      options[argv[i]] = std::atof(argv[i + 1]);
      ++i;
    } else if (model.empty() && argv[i][0] != '-') {
      model = argv[i];
    } else {
      model.clear();
      break;
    }
  }
  if (model.empty()) {
    std::cerr << "usage: serving_bench MODEL [--clients N] [--rate N] [--chunk N] [--prefix N] [--tail N] "
                 "[--gen N] [--threads N] "
                 "[--itl-target MS] [--long N] [--hit N] [--pipeline N]\n";
    return 2;
  }
  try {
    return options["--hit"] > 0 ? quire::bench_hit(model, options) : quire::bench(model, options);
  } catch (const quire::Error& error) {
    std::cerr << "serving_bench: " << error.what() << "\n";
    return 1;
  }
}
