#include "explain/phases.h"

#include <fmt/format.h>

#include "base/thread_pool.h"
#include "cli/explain/view.h"
#include "cli/progress.h"
#include "cli/timeline_svg.h"

namespace quire::cli {
namespace {

// How long its operations, and its bytes, would take at the machine's rates.
struct PhaseBound {
  double compute_seconds = 0, memory_seconds = 0;

  const char* by() const { return memory_seconds > compute_seconds ? "memory" : "arithmetic"; }
  double seconds() const { return std::max(compute_seconds, memory_seconds); }
};

PhaseBound bound_of(const PhaseFigures& phase, const MachineRates& machine) {
  return {phase.cost.int8_ops / (machine.int8_gops * 1e9) + phase.cost.f32_ops / (machine.f32_gflops * 1e9) +
              phase.cost.bf16_ops / (machine.bf16_gflops * 1e9),
          phase.cost.bytes() / (machine.read_gb_s * 1e9)};
}

struct BothWays {
  MachineRates machine;
  WayFigures on, off;
};

std::string limits_table(const BothWays& ways) {
  std::string table = fmt::format("this machine: {:.1f} GB/s, {:.0f} GOPS int8, {:.0f} GFLOPS f32\n\n",
                                  ways.machine.read_gb_s, ways.machine.int8_gops, ways.machine.f32_gflops);
  const auto line = [&](const char* label, const std::string& a, const std::string& b, const std::string& c,
                        const std::string& d) {
    table += fmt::format("{:24} {:>17} {:>17}   {:>17} {:>17}\n", label, a, b, c, d);
  };
  line("", "with the cache:", "", "without it:", "");
  line("", "prefill", "decode", "first pass", "every later pass");
  const auto row = [&](const char* label, auto value) {
    line(label, value(ways.on.prefill), value(ways.on.decode), value(ways.off.prefill),
         value(ways.off.decode));
  };
  row("passes", [](const PhaseFigures& p) { return exact_count(p.passes); });
  row("tokens computed", [](const PhaseFigures& p) { return exact_count(p.tokens); });
  row("entries in the cache", [](const PhaseFigures& p) { return exact_count(p.entries); });
  row("attention pairs", [](const PhaseFigures& p) { return exact_count(p.pairs); });
  row("operations", [](const PhaseFigures& p) { return count_text(p.cost.ops()); });
  row("bytes read", [](const PhaseFigures& p) { return human_bytes(size_t(p.cost.bytes())); });
  row("operations per byte",
      [](const PhaseFigures& p) { return fmt::format("{:.1f}", p.cost.ops_per_byte()); });
  row("seconds", [](const PhaseFigures& p) { return fmt::format("{:.3f}", p.seconds); });
  row("bound by", [&](const PhaseFigures& p) { return std::string(bound_of(p, ways.machine).by()); });
  row("share of that limit", [&](const PhaseFigures& p) {
    return fmt::format("{:.0f} %", 100 * bound_of(p, ways.machine).seconds() / p.seconds);
  });
  line("tokens computed in all", "", exact_count(ways.on.computed_tokens()), "",
       exact_count(ways.off.computed_tokens()));
  return table;
}

std::string table_of(const ExplainInput& input, const BothWays& ways) {
  const auto& [machine, on, off] = ways;
  std::string table =
      fmt::format("{} tokens of prompt, {} of answer; {}, the same tokens both ways\n", input.prompt.size(),
                  input.generated, input.options.temperature == 0 ? "greedy" : "sampled");
  table += limits_table(ways);
  const auto times = [&](const char* label, double with, double without) {
    table += fmt::format("{:24} {:>14.1f} ms {:>20} {:>14.1f} ms\n", label, with, "", without);
  };
  table += "\n";
  times("time to first token", on.ttft_ms, off.ttft_ms);
  times("time between tokens", on.between_tokens_ms(), off.between_tokens_ms());
  if (off.predicted_seconds > 0) {
    table += fmt::format(
        "\nWithout the cache {} passes were run; the other {:.0f} s are predicted from them "
        "(--off-seconds).\n",
        off.tokens.size(), off.predicted_seconds);
  }
  return table +
         "\nPrefill reads every weight once for all tokens of the prompt, decode once for each token: so the "
         "first is bound\nby arithmetic and the second by memory. Without the cache every pass is a prefill "
         "of "
         "all that is known so far.\n";
}

OrderedJson json_of(const ExplainInput& input, const BothWays& ways) {
  const MachineRates& machine = ways.machine;
  const auto phase = [&](const PhaseFigures& p) {
    return OrderedJson{{"passes", p.passes},
                       {"tokens", p.tokens},
                       {"kv_entries", p.entries},
                       {"attention_pairs", p.pairs},
                       {"operations", p.cost.ops()},
                       {"bytes", p.cost.bytes()},
                       {"weight_bytes", p.cost.weight_bytes},
                       {"kv_bytes", p.cost.kv_bytes},
                       {"seconds", p.seconds},
                       {"bound", bound_of(p, machine).by()},
                       {"share", bound_of(p, machine).seconds() / p.seconds}};
  };
  const auto way = [&](const WayFigures& w) {
    return OrderedJson{{"prefill", phase(w.prefill)},
                       {"decode", phase(w.decode)},
                       {"computed_tokens", w.computed_tokens()},
                       {"ttft_ms", w.ttft_ms},
                       {"predicted_seconds", w.predicted_seconds}};
  };
  return {{"prompt_tokens", input.prompt.size()},
          {"answer_tokens", input.generated},
          {"machine",
           {{"read_gb_s", machine.read_gb_s},
            {"int8_gops", machine.int8_gops},
            {"f32_gflops", machine.f32_gflops},
            {"bf16_gflops", machine.bf16_gflops}}},
          {"with_cache", way(ways.on)},
          {"without_cache", way(ways.off)}};
}

std::string svg_of(const BothWays& ways) {
  const auto lane = [](const char* label, const WayFigures& way) {
    std::string note = fmt::format("{} tokens computed in {} passes", exact_count(way.computed_tokens()),
                                   way.prefill.passes + way.decode.passes);
    if (way.predicted_seconds > 0)
      note += fmt::format("; the last {:.0f} s are predicted", way.predicted_seconds);
    return timeline_lane(label, note, way);
  };
  return timeline_svg({.title = "One request with the KV cache and without it",
                       .lanes = {lane("with the cache", ways.on), lane("without it", ways.off)}});
}

}  // namespace

Shown show_phases(const ExplainInput& input) {
  BothWays ways;
  ways.machine = input.model.backend().make_yardstick({.seconds = 0.3})->measure();
  const auto run = [&](const char* label, bool cache, double most_seconds) {
    EngineOptions engine = input.engine;
    engine.kv_cache = cache;
    Progress progress(label);
    return run_way(input.model.engine_model(), engine, input.request(),
                   {.most_seconds = most_seconds,
                    .progress = [&](size_t answered) { progress.update(answered, input.generated); }});
  };
  ways.on = run("with the cache", true, 0);
  ways.off = run("without", false, input.options.off_seconds);
  check_same_tokens(ways.on, ways.off, "leaving out the cache");
  return {table_of(input, ways), json_of(input, ways), svg_of(ways)};
}

}  // namespace quire::cli
