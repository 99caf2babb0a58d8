#include "explain/batching.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/error.h"
#include "cli/explain/view.h"
#include "cli/progress.h"
#include "cli/svg_page.h"

namespace quire::cli {
namespace {

using Admission = BatchingWay::Admission;
using Room = BatchingWay::Room;

constexpr BatchingWay kWays[] = {{Admission::continuous, Room::paged},
                                 {Admission::continuous, Room::contiguous},
                                 {Admission::fixed, Room::paged},
                                 {Admission::fixed, Room::contiguous}};

const char* name(Admission admission) {
  return admission == Admission::continuous ? "continuous" : "static";
}
const char* name(Room room) {
  return room == Room::paged ? "paged" : "contiguous";
}

double mean_wait_passes(const BatchingFigures& figures) {
  const std::vector<uint32_t> waits = figures.waits_passes();
  return mean_of(std::vector<double>(waits.begin(), waits.end()));
}

std::string table_of(const std::vector<Arrival>& load, const std::vector<BatchingFigures>& ways) {
  size_t prompts = 0;
  for (const Arrival& arrival : load) prompts += arrival.prompt.size();
  const BatchingFigures& first = ways.front();
  std::string table = fmt::format(
      "{} requests arrive within {} passes: {} tokens of prompts; each asks for {} tokens at the most and "
      "ends earlier, {} "
      "in all,\nthe same answers each time. There are {} for KV.\n\n",
      load.size(), load.back().pass + 1, exact_count(double(prompts)), load.front().max_tokens,
      exact_count(double(first.answer_tokens())), human_bytes(first.kv_bytes));
  const auto row = [&](const char* label, auto value) {
    table += fmt::format("{:34}", label);
    for (const BatchingFigures& way : ways) table += fmt::format(" {:>14}", value(way));
    table += "\n";
  };
  const auto ms = [](double value) { return fmt::format("{:.1f} ms", value); };
  row("batching", [](const BatchingFigures& w) { return name(w.way.admission); });
  row("room for KV", [](const BatchingFigures& w) { return name(w.way.room); });
  row("passes", [](const BatchingFigures& w) { return w.worked_passes(); });
  row("most that ran together", [](const BatchingFigures& w) { return w.most_running(); });
  row("ran together, mean", [](const BatchingFigures& w) { return fmt::format("{:.2f}", w.mean_running()); });
  row("preempted", [](const BatchingFigures& w) { return w.preemptions; });
  row("tokens per second",
      [](const BatchingFigures& w) { return fmt::format("{:.0f}", w.tokens_per_second()); });
  row("wait for the first token, mean", [&](const BatchingFigures& w) { return ms(mean_of(w.waits_ms())); });
  row("  in passes", [](const BatchingFigures& w) { return fmt::format("{:.1f}", mean_wait_passes(w)); });
  row("  99th percentile", [&](const BatchingFigures& w) { return ms(percentile_of(w.waits_ms(), 0.99)); });
  row("gap between tokens, 99th perc.",
      [&](const BatchingFigures& w) { return ms(percentile_of(w.gaps_ms(), 0.99)); });
  row("KV reserved and unused, mean",
      [](const BatchingFigures& w) { return human_bytes(size_t(w.mean_unused_bytes())); });
  row("  of what is reserved",
      [](const BatchingFigures& w) { return fmt::format("{:.0f} %", 100 * w.unused_share()); });
  row("sequences that fit, by their mean",
      [](const BatchingFigures& w) { return fmt::format("{:.1f}", w.fitting()); });
  return table +
         "\nStatic: a batch runs to its end before the next begins, so short answers leave places empty and\n"
         "those who come later wait. Continuous: who arrives joins the next pass. Contiguous: room for the\n"
         "prompt and the longest answer asked for is taken at the start, used or not. Paged: a page at a\n"
         "time, as it is needed. Arrivals are counted in passes: the same for all, on every machine.\n";
}

OrderedJson json_of(const std::vector<Arrival>& load, const std::vector<BatchingFigures>& ways) {
  OrderedJson requests = OrderedJson::array(), list = OrderedJson::array();
  for (const Arrival& arrival : load)
    requests.push_back({{"arrives_before_pass", arrival.pass},
                        {"prompt_tokens", arrival.prompt.size()},
                        {"max_tokens", arrival.max_tokens},
                        {"answer_tokens", arrival.answer_tokens}});
  for (const BatchingFigures& way : ways) {
    list.push_back({{"batching", name(way.way.admission)},
                    {"room", name(way.way.room)},
                    {"passes", way.worked_passes()},
                    {"most_running", way.most_running()},
                    {"mean_running", way.mean_running()},
                    {"preemptions", way.preemptions},
                    {"answer_tokens", way.answer_tokens()},
                    {"seconds", way.seconds()},
                    {"tok_s", way.tokens_per_second()},
                    {"wait_ms_mean", mean_of(way.waits_ms())},
                    {"wait_ms_p99", percentile_of(way.waits_ms(), 0.99)},
                    {"wait_passes", way.waits_passes()},
                    {"gap_ms_p99", percentile_of(way.gaps_ms(), 0.99)},
                    {"unused_bytes_mean", way.mean_unused_bytes()},
                    {"unused_share", way.unused_share()},
                    {"sequences_that_fit", way.fitting()}});
  }
  return {{"kv_bytes", ways.front().kv_bytes}, {"requests", requests}, {"same_tokens", true}, {"ways", list}};
}

// Each request is a line: from its arrival to its first token, and to its last.
std::string svg_of(const std::vector<BatchingFigures>& ways) {
  constexpr double kLeft = 40, kWidth = 820, kTop = 90, kTitle = 30;
  constexpr size_t kMostLines = 64;
  const size_t lines = std::min(ways.front().stories.size(), kMostLines);
  const double line = lines > 24 ? 5 : 9, panel = kTitle + line * double(lines) + 14;
  size_t end = 1;
  for (const BatchingFigures& way : ways) end = std::max(end, way.passes.size());
  const auto x = [&](double pass) { return kLeft + kWidth * pass / double(end); };
  const double bottom = kTop + panel * double(ways.size());
  SvgPage page(kLeft + kWidth + 40, bottom + 44, "The same requests, batched in four ways");
  double next = page.key(20, 50, "wait", "waits for its first token");
  page.key(next, 50, "decode", "answers, a token a pass");
  const double tick_step = round_tick(double(end), 8);
  for (double tick = 0; tick <= double(end); tick += tick_step) {
    page.line(x(tick), kTop - 14, x(tick), bottom, "grid");
    page.text(x(tick), bottom + 16, fmt::format("{:.0f}", tick), "quiet", SvgPage::Anchor::middle);
  }
  page.text(kLeft, bottom + 34, "passes of the engine", "quiet");
  for (size_t w = 0; w < ways.size(); ++w) {
    const BatchingFigures& way = ways[w];
    double y = kTop + panel * double(w);
    page.text(kLeft, y + 8,
              fmt::format("{}, {}: {} passes, {:.0f} tokens/s, {} reserved and unused",
                          name(way.way.admission), name(way.way.room), way.worked_passes(),
                          way.tokens_per_second(), human_bytes(size_t(way.mean_unused_bytes()))));
    y += kTitle - 14;
    for (size_t i = 0; i < lines; ++i, y += line) {
      const RequestStory& story = way.stories[i];
      const double first = story.token_passes.front(), last = story.token_passes.back() + 1;
      page.rect(x(story.arrived), y, x(first) - x(story.arrived), line - 1.5, "wait");
      page.rect(x(first), y, x(last) - x(first), line - 1.5, "decode");
    }
  }
  return page.done();
}

}  // namespace

Shown show_batching(const ExplainInput& input) {
  const uint32_t vocab = input.model.spec().vocab;
  const uint32_t longest_prompt = input.options.doc > 0 ? input.options.doc : 96;
  if (longest_prompt + input.generated > input.engine.context)
    throw Error("{} tokens of prompt and {} of answer are more than the context of {}", longest_prompt,
                input.generated, input.engine.context);
  const std::vector<Arrival> load = make_load({.requests = input.options.requests,
                                               .seed = input.options.seed,
                                               .longest_prompt = longest_prompt,
                                               .longest_answer = input.generated,
                                               .vocab = vocab});
  const std::string& memory = input.options.model.kv_memory;
  const BatchingOptions options{.at_once = input.options.at_once,
                                .kv_bytes = memory.empty() ? 0 : parse_size(memory)};
  std::vector<BatchingFigures> ways;
  Progress progress("batching");
  for (const BatchingWay& way : kWays) {
    ways.push_back(run_batching(input.model.engine_model(), input.engine, load, way, options));
    check_same_answers(ways.front(), ways.back());
    progress.update(ways.size(), std::size(kWays));
  }
  progress.clear();
  return {table_of(load, ways), json_of(load, ways), svg_of(ways)};
}

}  // namespace quire::cli
