#include <algorithm>

#include <fmt/format.h>

#include "cli/explain/view.h"
#include "cli/progress.h"
#include "cli/timeline_svg.h"
#include "explain/phases.h"

namespace quire::cli {
namespace {

struct Trial {
  uint32_t chunk;
  WayFigures way;
};

std::string table_of(const ExplainInput& input, const std::vector<Trial>& trials) {
  std::string table =
      fmt::format("{} tokens of prompt in chunks; the {} tokens of the answer are the same each time\n\n",
                  input.prompt.size(), input.generated);
  table += fmt::format("{:>7} {:>8} {:>13} {:>15} {:>15} {:>18} {:>15}\n", "chunk", "passes", "first token",
                       "longest pass", "weights read", "operations/byte", "tokens/s");
  for (const auto& [chunk, way] : trials) {
    table += fmt::format("{:>7} {:>8} {:>10.1f} ms {:>12.1f} ms {:>15} {:>18.1f} {:>15.0f}\n", chunk,
                         way.prefill.passes, way.ttft_ms, way.longest_prefill_ms(),
                         human_bytes(size_t(way.prefill.cost.weight_bytes)), way.prefill.cost.ops_per_byte(),
                         way.prefill.tokens / way.prefill.seconds);
  }
  const auto by_chunk = [](const Trial& a, const Trial& b) { return a.chunk < b.chunk; };
  const Trial& small = *std::ranges::min_element(trials, by_chunk);
  const Trial& large = *std::ranges::max_element(trials, by_chunk);
  table +=
      "\nEvery pass reads all weights, so fewer passes read less; but a pass is as long as its chunk, and ";
  table += "everybody else\nwaits for it: ";
  table +=
      fmt::format("{:.1f} ms with chunks of {}, {:.1f} ms with chunks of {}.\n",
                  small.way.longest_prefill_ms(), small.chunk, large.way.longest_prefill_ms(), large.chunk);
  return table;
}

OrderedJson json_of(const ExplainInput& input, const std::vector<Trial>& trials) {
  OrderedJson list = OrderedJson::array();
  for (const auto& [chunk, way] : trials) {
    list.push_back({{"chunk", chunk},
                    {"passes", way.prefill.passes},
                    {"ttft_ms", way.ttft_ms},
                    {"longest_pass_ms", way.longest_prefill_ms()},
                    {"weight_bytes", way.prefill.cost.weight_bytes},
                    {"kv_bytes", way.prefill.cost.kv_bytes},
                    {"operations", way.prefill.cost.ops()},
                    {"seconds", way.prefill.seconds}});
  }
  return {{"prompt_tokens", input.prompt.size()},
          {"answer_tokens", input.generated},
          {"answer_ids", trials.front().way.tokens},
          {"same_tokens", true},  // otherwise there is an error and no object
          {"chunks", list}};
}

std::string svg_of(const std::vector<Trial>& trials) {
  Timeline timeline{.title = "One prompt in chunks of several sizes", .lanes = {}};
  for (const auto& [chunk, way] : trials) {
    timeline.lanes.push_back(
        timeline_lane(fmt::format("chunks of {}", chunk),
                      fmt::format("passes for the prompt: {}; {} of weights read, the longest pass {:.1f} ms",
                                  way.prefill.passes, human_bytes(size_t(way.prefill.cost.weight_bytes)),
                                  way.longest_prefill_ms()),
                      way));
  }
  return timeline_svg(timeline);
}

}  // namespace

Shown show_chunks(const ExplainInput& input) {
  std::vector<uint32_t> sizes = input.options.chunks;
  if (sizes.empty()) sizes = {1, 32, 512};
  const auto run = [&](const Request& request, uint32_t chunk) {
    EngineOptions engine = input.engine;
    engine.kv_cache = true;
    engine.prefill_chunk = chunk;
    return run_way(input.model.engine_model(), engine, request);
  };
  {
    // The first pass over a model finds nothing in the machine's caches: it is nobody's figure.
    Request warm_up = input.request();
    warm_up.prompt.resize(std::min<size_t>(warm_up.prompt.size(), 64));
    run(warm_up, 64);
  }
  std::vector<Trial> trials;
  Progress progress("chunks");
  for (uint32_t chunk : sizes) {
    trials.push_back({chunk, run(input.request(), chunk)});
    check_same_tokens(trials.front().way, trials.back().way, "another size of chunks");
    progress.update(trials.size(), sizes.size());
  }
  progress.clear();
  return {table_of(input, trials), json_of(input, trials), svg_of(trials)};
}

}  // namespace quire::cli
