#include <fstream>
#include <iostream>

#include "backend/cpu/yardstick.h"
#include "base/error.h"
#include "base/json.h"
#include "cli/commands.h"
#include "cli/model_options.h"
#include "cli/progress.h"
#include "cli/timeline_svg.h"

namespace quire::cli {
namespace {

// Some steps of a run taken together: those until the first token, or those after it.
struct PhaseFigures {
  double tokens = 0;  // computed
  double pairs = 0;
  StepCost cost;
  double seconds = 0;
  uint32_t steps = 0;

  void add(const StepRecord& step) {
    tokens += step.prompt_tokens + step.stream_tokens + step.draft_tokens;
    pairs += step.attention_pairs;
    cost += step.cost;
    seconds += step.ms / 1000;
    ++steps;
  }
};

// One prompt run in one way.
struct WayFigures {
  PhaseFigures prefill, decode;
  double predicted_seconds = 0;  // of decode: of the steps that were counted and not run
  std::vector<TokenId> tokens;   // of the answer, as far as it was run
  std::vector<Timeline::Bar> bars;
  double ttft_ms = 0;
};

// How long its operations, and its bytes, would take at the machine's rates.
struct Bound {
  double compute_seconds = 0, memory_seconds = 0;
};

Bound bound_of(const PhaseFigures& phase, const MachineRates& machine) {
  return {phase.cost.int8_ops / (machine.int8_gops * 1e9) + phase.cost.f32_ops / (machine.f32_gflops * 1e9),
          phase.cost.bytes() / (machine.read_gb_s * 1e9)};
}

std::string exact_count(double value) {
  std::string digits = fmt::format("{:.0f}", value);
  for (size_t i = digits.size(); i > 3; i -= 3) digits.insert(i - 3, ",");
  return digits;
}

std::string count_text(double value) {
  constexpr const char* kUnits[] = {"", "k", "M", "G", "T", "P"};
  size_t unit = 0;
  for (; value >= 99999.5 && unit < 5; ++unit) value /= 1000;
  return exact_count(value) + (unit > 0 ? std::string(" ") + kUnits[unit] : "");
}

struct ExplainCommand {
  ModelOptions model;
  std::string prompt;
  uint32_t doc = 0;
  uint32_t generated = 64;
  double off_seconds = 20;
  bool raw = false;
  bool json = false;
  std::string svg;

  std::vector<TokenId> prompt_tokens(const LoadedModel& loaded) const {
    std::vector<TokenId> tokens;
    if (doc > 0) {
      uint64_t state = 7;
      for (uint32_t i = 0; i < doc; ++i) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        tokens.push_back(TokenId((state >> 33) % loaded.spec().vocab));
      }
      return tokens;
    }
    const std::string text = prompt == "-" ? read_text("-") : prompt.empty() ? "What is a KV cache?" : prompt;
    if (raw || !loaded.text().chat_template) return loaded.text().tokenizer.encode(text);
    ChatInput chat;
    chat.messages = OrderedJson::array();
    chat.messages.push_back({{"role", "user"}, {"content", text}});
    return loaded.text().encode_chat(chat);
  }

  void operator()() const {
    ModelOptions::Opened opened = model.open();
    const LoadedModel& loaded = *opened.model;
    Request request;
    request.prompt = prompt_tokens(loaded);
    request.sampling.temperature = 0;
    request.max_tokens = generated;
    request.ignore_end = true;  // both ways must come to the same length
    if (request.prompt.size() + generated > opened.engine.context) {
      throw Error("{} tokens of prompt and {} of answer are more than the context of {}",
                  request.prompt.size(), generated, opened.engine.context);
    }
    MachineRates machine;
    {
      Yardstick yardstick({.threads = model.threads.value_or(usable_cpus()), .seconds = 0.3});
      machine = yardstick.measure();
    }
    const WayFigures on = run(loaded, opened.engine, request, true, 0);
    const WayFigures off = run(loaded, opened.engine, request, false, off_seconds);
    if (!std::equal(off.tokens.begin(), off.tokens.end(), on.tokens.begin()))
      throw Error("the answers with and without the cache differ: this is a bug of quire");
    if (json) {
      print_json(request, machine, on, off);
    } else {
      print(request, machine, on, off);
    }
    if (!svg.empty()) {
      std::ofstream file(svg);
      file << timeline(on, off);
      if (!file.flush()) throw Error("cannot write {}", svg);
    }
  }

  WayFigures run(const LoadedModel& loaded, EngineOptions options, const Request& request, bool cache,
                 double most_seconds) const {
    options.kv_cache = cache;
    options.context = uint32_t(request.prompt.size()) + generated;
    Engine engine(loaded.engine_model(), options);
    const Clock::time_point begin = Clock::now();
    const SequenceId id = engine.submit(request);
    Progress progress(cache ? "with the cache" : "without");
    WayFigures way;
    uint64_t seen = 0;
    std::optional<Answer> answer;
    while (!answer) {
      engine.step();
      answer = engine.take_answer(id);
      const Sequence* sequence = engine.scheduler().find(id);
      const size_t answered = answer ? answer->tokens.size() : sequence->answer_tokens();
      for (const StepRecord& step : engine.steps().since(seen)) {
        const bool first = way.ttft_ms == 0;
        (first ? way.prefill : way.decode).add(step);
        way.bars.push_back({milliseconds_between(begin, step.begin), step.ms, first});
      }
      seen = engine.steps().total();
      if (way.ttft_ms == 0 && answered > 0) way.ttft_ms = milliseconds_between(begin, Clock::now());
      progress.update(answered, generated);
      if (!answer && most_seconds > 0 && way.decode.seconds > most_seconds) {
        way.tokens.assign(sequence->tokens.begin() + ptrdiff_t(request.prompt.size()),
                          sequence->tokens.end());
        engine.cancel(id);
        predict_rest(loaded, engine, request, way);
        return way;
      }
    }
    way.tokens = answer->tokens;
    return way;
  }

  // The steps that were not run are counted as if they had been, and take as long as their tokens did so far.
  void predict_rest(const LoadedModel& loaded, const Engine& engine, const Request& request,
                    WayFigures& way) const {
    const CostModel costs(loaded.spec(), loaded.weights(), loaded.backend());
    const double seconds_per_op = way.decode.seconds / way.decode.cost.ops();
    for (uint32_t answered = uint32_t(way.tokens.size()); answered < generated; ++answered) {
      const uint32_t tokens = uint32_t(request.prompt.size()) + answered;
      StepRecord step;
      step.prompt_tokens = tokens;
      step.cost =
          costs.step({.sequences = 1, .tokens = tokens, .depth = 0, .logit_rows = 1}, engine.kv().layout());
      step.attention_pairs = double(tokens) * (tokens + 1) / 2;
      step.ms = 1000 * seconds_per_op * step.cost.ops();
      const double begin_ms = way.bars.back().begin_ms + way.bars.back().ms;
      way.bars.push_back({begin_ms, step.ms, false});
      way.predicted_seconds += step.ms / 1000;
      way.decode.add(step);
    }
  }

  void print(const Request& request, const MachineRates& machine, const WayFigures& on,
             const WayFigures& off) const {
    fmt::print("{} tokens of prompt, {} of answer; greedy, the same tokens both ways\n",
               request.prompt.size(), generated);
    fmt::print("this machine: {:.1f} GB/s, {:.0f} GOPS int8, {:.0f} GFLOPS f32\n\n", machine.read_gb_s,
               machine.int8_gops, machine.f32_gflops);
    fmt::print("{:24} {:>17} {:>17}   {:>17} {:>17}\n", "", "with the cache:", "", "without it:", "");
    fmt::print("{:24} {:>17} {:>17}   {:>17} {:>17}\n", "", "prefill", "decode", "first pass",
               "every later pass");
    const auto row = [&](const char* label, auto value) {
      fmt::print("{:24} {:>17} {:>17}   {:>17} {:>17}\n", label, value(on.prefill), value(on.decode),
                 value(off.prefill), value(off.decode));
    };
    row("passes", [](const PhaseFigures& p) { return exact_count(p.steps); });
    row("tokens computed", [](const PhaseFigures& p) { return exact_count(p.tokens); });
    row("attention pairs", [](const PhaseFigures& p) { return exact_count(p.pairs); });
    row("operations", [](const PhaseFigures& p) { return count_text(p.cost.ops()); });
    row("bytes read", [](const PhaseFigures& p) { return human_bytes(size_t(p.cost.bytes())); });
    row("operations per byte",
        [](const PhaseFigures& p) { return fmt::format("{:.1f}", p.cost.ops_per_byte()); });
    row("seconds", [](const PhaseFigures& p) { return fmt::format("{:.3f}", p.seconds); });
    row("bound by", [&](const PhaseFigures& p) {
      const Bound bound = bound_of(p, machine);
      return std::string(bound.memory_seconds > bound.compute_seconds ? "memory" : "arithmetic");
    });
    row("share of that limit", [&](const PhaseFigures& p) {
      const Bound bound = bound_of(p, machine);
      return fmt::format("{:.0f} %", 100 * std::max(bound.compute_seconds, bound.memory_seconds) / p.seconds);
    });
    row("tokens computed in all", [&](const PhaseFigures& p) {
      const bool is_decode = &p == &on.decode || &p == &off.decode;
      if (!is_decode) return std::string();
      return exact_count((&p == &on.decode ? on.prefill.tokens : off.prefill.tokens) + p.tokens);
    });
    fmt::print("\n{:24} {:>14.1f} ms {:>20} {:>14.1f} ms\n", "time to first token", on.ttft_ms, "",
               off.ttft_ms);
    const auto between = [](const WayFigures& way) {
      return way.decode.steps > 0 ? 1000 * way.decode.seconds / way.decode.steps : 0;
    };
    fmt::print("{:24} {:>14.1f} ms {:>20} {:>14.1f} ms\n", "time between tokens", between(on), "",
               between(off));
    if (off.predicted_seconds > 0) {
      fmt::print(
          "\nWithout the cache {} passes were run; the other {:.0f} s are predicted from them "
          "(--off-seconds).\n",
          off.tokens.size(), off.predicted_seconds);
    }
    fmt::print(
        "\nPrefill reads every weight once for all tokens of the prompt, decode once for each token: so the "
        "first is bound\n"
        "by arithmetic and the second by memory. Without the cache every pass is a prefill of all that is "
        "known so far.\n");
  }

  void print_json(const Request& request, const MachineRates& machine, const WayFigures& on,
                  const WayFigures& off) const {
    const auto phase = [&](const PhaseFigures& p) {
      const Bound bound = bound_of(p, machine);
      return OrderedJson{{"passes", p.steps},
                         {"tokens", p.tokens},
                         {"attention_pairs", p.pairs},
                         {"operations", p.cost.ops()},
                         {"bytes", p.cost.bytes()},
                         {"seconds", p.seconds},
                         {"bound", bound.memory_seconds > bound.compute_seconds ? "memory" : "arithmetic"},
                         {"share", std::max(bound.compute_seconds, bound.memory_seconds) / p.seconds}};
    };
    const auto way = [&](const WayFigures& w) {
      return OrderedJson{{"prefill", phase(w.prefill)},
                         {"decode", phase(w.decode)},
                         {"computed_tokens", w.prefill.tokens + w.decode.tokens},
                         {"ttft_ms", w.ttft_ms},
                         {"predicted_seconds", w.predicted_seconds}};
    };
    const OrderedJson object = {{"prompt_tokens", request.prompt.size()},
                                {"answer_tokens", generated},
                                {"machine",
                                 {{"read_gb_s", machine.read_gb_s},
                                  {"int8_gops", machine.int8_gops},
                                  {"f32_gflops", machine.f32_gflops}}},
                                {"with_cache", way(on)},
                                {"without_cache", way(off)}};
    std::cout << object.dump(2) << "\n";
  }

  std::string timeline(const WayFigures& on, const WayFigures& off) const {
    const auto lane = [](const char* label, const WayFigures& way) {
      std::string note =
          fmt::format("{} tokens computed in {} passes", exact_count(way.prefill.tokens + way.decode.tokens),
                      way.prefill.steps + way.decode.steps);
      if (way.predicted_seconds > 0)
        note += fmt::format("; the last {:.0f} s are predicted", way.predicted_seconds);
      return Timeline::Lane{label, note, way.bars, way.ttft_ms};
    };
    return timeline_svg({.title = "One request with the KV cache and without it",
                         .lanes = {lane("with the cache", on), lane("without it", off)}});
  }
};

}  // namespace

void add_explain(CLI::App& app) {
  auto command = std::make_shared<ExplainCommand>();
  CLI::App* explain = app.add_subcommand(
      "explain", "one prompt with the KV cache on and off: what each phase computes, and what bounds it");
  command->model.add_to(*explain);
  explain->add_option("prompt", command->prompt, "the prompt, or - for stdin (default: a question)");
  explain->add_option("--doc", command->doc, "instead of a prompt: a document of so many random tokens")
      ->check(CLI::Range(1u, 1u << 24));
  explain->add_option("--gen", command->generated, "tokens of the answer")
      ->capture_default_str()
      ->check(CLI::Range(2u, 1u << 20));
  explain
      ->add_option("--off-seconds", command->off_seconds,
                   "how long to run without the cache before the rest is predicted (0: to the end)")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1e6));
  explain->add_flag("--raw", command->raw, "no chat template");
  explain->add_flag("--json", command->json, "print one JSON object");
  explain->add_option("--svg", command->svg, "a file to draw the timeline to");
  explain->callback([command] { (*command)(); });
}

}  // namespace quire::cli
