#include "cli/what_if.h"

#include <charconv>
#include <filesystem>
#include <iostream>

#include <fmt/format.h>

#include "base/json.h"
#include "base/thread_pool.h"
#include "cli/forecast.h"
#include "cli/progress.h"
#include "engine/memory_plan.h"

namespace quire::cli {
namespace {

// Of the time for measuring.
constexpr double kYardstickShare = 1.0 / 12;
constexpr double kPhaseShare = 1.0 / 60;
constexpr uint32_t kChunk = 512;

// "k=int8,v=q4" is one value although it has a comma.
std::vector<std::string> split_changes(const std::string& text) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t comma = std::min(text.find(',', begin), text.size());
    const std::string part = text.substr(begin, comma - begin);
    // Formats have commas too.
    const bool of_format =
        part.starts_with("k=") || part.starts_with("v=") || part.find(':') != std::string::npos;
    if (of_format && !parts.empty()) {
      parts.back() += "," + part;
    } else {
      parts.push_back(part);
    }
    begin = comma + 1;
  }
  return parts;
}

double times(const std::string& name, std::string value) {
  if (value.ends_with("x")) value.pop_back();
  double factor = 0;
  const auto [end, problem] = std::from_chars(value.data(), value.data() + value.size(), factor);
  if (problem != std::errc() || end != value.data() + value.size() || !(factor >= 0.01) || factor > 10000)
    wrong_usage("--what-if {} wants a factor such as 2x or 0.5x, not '{}'", name, value);
  return factor;
}

uint32_t count(const std::string& name, const std::string& value, uint32_t least, uint32_t most) {
  uint32_t number = 0;
  const auto [end, problem] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (problem != std::errc() || end != value.data() + value.size() || number < least || number > most)
    wrong_usage("--what-if {} wants a number from {} to {}, not '{}'", name, least, most, value);
  return number;
}

// One column of the answer.
struct Case {
  Circumstances how;
  KvRoom room = {};
  std::vector<Forecast::Time> first_token = {}, next_token = {};  // by prompt, by depth
  ReachedShares shares = {};
};

OrderedJson times_json(const std::vector<uint32_t>& sizes, const std::vector<Forecast::Time>& times,
                       const char* size) {
  OrderedJson list = OrderedJson::array();
  for (size_t i = 0; i < sizes.size(); ++i)
    list.push_back({{size, sizes[i]}, {"ms", times[i].seconds * 1e3}, {"bound", name(times[i].bound)}});
  return list;
}

OrderedJson case_json(const WhatIf& ask, const Case& one) {
  return {{"bandwidth", one.how.bandwidth},
          {"flops", one.how.flops},
          {"kv", one.how.kv},
          {"context", one.how.context},
          {"batch", one.how.batch},
          {"bytes_per_token", one.room.bytes_per_token},
          {"sequences", one.room.sequences},
          {"ttft", times_json(ask.prompts, one.first_token, "prompt")},
          {"itl", times_json(ask.depths, one.next_token, "depth")},
          {"shares",
           {{"reading_weights", one.shares.reading_weights},
            {"prefill_products", one.shares.prefill_products},
            {"decode_products", one.shares.decode_products},
            {"prefill_attention", one.shares.prefill_attention},
            {"decode_attention", one.shares.decode_attention}}}};
}

std::string time_text(const Forecast::Time& time) {
  const double ms = time.seconds * 1e3;
  return fmt::format("{:.{}f} ms, {}", ms, ms < 100 ? 1 : 0, name(time.bound));
}

std::string table(const WhatIf& ask, const Case& base, const Case& other) {
  std::string text;
  const auto row = [&](const std::string& what, const std::string& a, const std::string& b) {
    text += fmt::format("  {:24}  {:32}  {}\n", what, a, b);
  };
  row("", "as it is", "what if");
  row("memory bandwidth", "as measured", fmt::format("{:g}x", other.how.bandwidth));
  row("computing", "as measured", fmt::format("{:g}x", other.how.flops));
  const auto both = [&](const std::string& what, const auto& value) { row(what, value(base), value(other)); };
  both("KV format",
       [](const Case& c) { return fmt::format("{}, {} bytes per token", c.how.kv, c.room.bytes_per_token); });
  both("context", [](const Case& c) { return fmt::format("{} tokens", c.how.context); });
  both("sequences that fit", [](const Case& c) { return fmt::format("{:.1f}", c.room.sequences); });
  both("batch", [](const Case& c) { return fmt::format("{}", c.how.batch); });
  for (size_t i = 0; i < ask.prompts.size(); ++i)
    both(fmt::format("TTFT, prompt of {}", ask.prompts[i]),
         [&](const Case& c) { return time_text(c.first_token[i]); });
  for (size_t i = 0; i < ask.depths.size(); ++i)
    both(fmt::format("ITL at depth {}", ask.depths[i]),
         [&](const Case& c) { return time_text(c.next_token[i]); });
  return text;
}

std::string shares_text(const ReachedShares& s) {
  return fmt::format(
      "reached here: {:.0f} % of the bandwidth when weights are read, {:.0f} % of the peak in a prompt's "
      "products;\n"
      "              {:.0f} % in its attention, {:.0f} % in the attention of one token\n",
      s.reading_weights * 100, s.prefill_products * 100, s.prefill_attention * 100, s.decode_attention * 100);
}

}  // namespace

Circumstances changed(Circumstances base, const std::string& changes) {
  for (const std::string& change : split_changes(changes)) {
    const size_t equals = std::min(change.find('='), change.size());
    const std::string name = change.substr(0, equals);
    const std::string value = change.substr(std::min(equals + 1, change.size()));
    if (name == "bandwidth") {
      base.bandwidth = times(name, value);
    } else if (name == "flops") {
      base.flops = times(name, value);
    } else if (name == "kv") {
      parse_kv_formats(value);
      base.kv = value;
    } else if (name == "ctx") {
      base.context = count(name, value, 2, 1u << 24);
    } else if (name == "batch") {
      base.batch = count(name, value, 1, 4096);
    } else {
      wrong_usage("--what-if knows bandwidth=2x, flops=2x, kv=FORMAT, ctx=N and batch=N, not '{}'", change);
    }
  }
  return base;
}

void WhatIf::print(std::shared_ptr<const ModelFile> file, const ModelSpec& spec, const std::string& kv,
                   size_t memory, bool json) const {
  const Circumstances as_is{.kv = kv, .context = spec.context};
  const Circumstances other = changed(as_is, changes);
  const uint32_t context = std::min(as_is.context, other.context);
  for (const uint32_t tokens : prompts) {
    if (tokens > context)
      wrong_usage("a prompt of {} tokens is more than the context of {}", tokens, context);
  }
  for (const uint32_t tokens : depths) {
    if (tokens >= context) wrong_usage("a depth of {} leaves no room in the context of {}", tokens, context);
  }
  const std::unique_ptr<Backend> opened =
      open_backend({.device = device, .threads = threads.value_or(usable_cpus())});
  Backend& backend = *opened;
  Weights weights = load_weights(file, spec, backend.traits());
  prepare_weights(weights, backend);
  const size_t left = memory > weights.bytes ? memory - weights.bytes : 0;
  const CostModel costs(weights, backend);
  Progress progress("measuring");
  progress.update(0, 2);
  const MachineRates machine = backend.make_yardstick({.seconds = seconds * kYardstickShare})->measure();

  std::vector<Case> cases = {{.how = as_is}, {.how = other}};
  std::vector<std::unique_ptr<PhaseRunner>> runners;
  std::vector<Subject> subjects;
  for (const Case& one : cases) {
    const KvFormats formats = parse_kv_formats(one.how.kv);
    runners.push_back(std::make_unique<PhaseRunner>(
        spec, weights, backend,
        PhaseRunner::Options{
            .kv_formats = formats, .prefill_chunk = kChunk, .least_seconds = seconds * kPhaseShare}));
    PhaseRunner& runner = *runners.back();
    subjects.push_back(
        {[&runner](const PhaseShape& shape) { return runner.run(shape); }, &runner.layout(), one.how.batch});
  }
  // Measured a second time the same would differ, and not because of the changes.
  if (as_is.kv == other.kv && as_is.batch == other.batch) subjects.pop_back();
  progress.update(1, 2);
  const std::vector<ReachedShares> shares = calibrate(subjects, costs, machine, spec.context, seconds);
  for (size_t i = 0; i < cases.size(); ++i) {
    Case& one = cases[i];
    one.shares = shares[std::min(i, shares.size() - 1)];
    const KvFormats formats = parse_kv_formats(one.how.kv);
    one.room = kv_room(spec, formats, one.how.context, left);
    MachineRates rates = machine;
    rates.read_gb_s *= one.how.bandwidth;
    rates.int8_gops *= one.how.flops;
    rates.f32_gflops *= one.how.flops;
    rates.bf16_gflops *= one.how.flops;
    const Forecast forecast(costs, runners[i]->layout(), rates, one.shares);
    for (const uint32_t prompt : prompts) one.first_token.push_back(forecast.first_token(prompt, kChunk));
    for (const uint32_t depth : depths) one.next_token.push_back(forecast.next_token(depth, one.how.batch));
  }
  progress.clear();
  if (json) {
    const OrderedJson object = {{"model", std::filesystem::path(file->path()).filename().string()},
                                {"threads", backend.traits().threads},
                                {"kernels", backend.traits().kernels},
                                {"machine",
                                 {{"read_gb_s", machine.read_gb_s},
                                  {"int8_gops", machine.int8_gops},
                                  {"f32_gflops", machine.f32_gflops},
                                  {"bf16_gflops", machine.bf16_gflops}}},
                                {"base", case_json(*this, cases[0])},
                                {"what_if", case_json(*this, cases[1])}};
    std::cout << object.dump(2, ' ', false, OrderedJson::error_handler_t::replace) << "\n";
    return;
  }
  fmt::print("{}: {}, {} kernels; reads {:.1f} GB/s, int8 {:.0f} GOPS, f32 {:.0f} GFLOPS\n{}\n{}",
             std::filesystem::path(file->path()).filename().string(),
             counted(backend.traits().threads, "thread"), backend.traits().kernels, machine.read_gb_s,
             machine.int8_gops, machine.f32_gflops, shares_text(cases[0].shares),
             table(*this, cases[0], cases[1]));
}

}  // namespace quire::cli
