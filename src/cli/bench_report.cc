#include "cli/bench_report.h"

#include <algorithm>

#include <fmt/format.h>

#include "cli/model_options.h"
#include "cli/roofline_svg.h"

namespace quire::cli {
namespace {

double compute_seconds(const BenchResult& result) {
  return result.run.cost.int8_ops / (result.limits.int8_gops * 1e9) +
         result.run.cost.f32_ops / (result.limits.f32_gflops * 1e9) +
         result.run.cost.bf16_ops / (result.limits.bf16_gflops * 1e9);
}

double memory_seconds(const BenchResult& result) {
  return result.run.cost.bytes() / (result.limits.read_gb_s * 1e9);
}

std::string percent(double share) {
  return fmt::format("{:.{}f} %", share * 100, share < 0.0995 ? 1 : 0);
}

std::string label(const BenchResult& result) {
  const PhaseShape& shape = result.shape;
  std::string text = fmt::format("{} {}", name(shape.phase), shape.tokens);
  if (shape.phase == Phase::decode) text += fmt::format(", batch {}, depth {}", shape.batch, shape.depth);
  return fmt::format("{}: {:.1f} tok/s, {}", text, result.tokens_per_second(), percent(result.share()));
}

}  // namespace

bool BenchResult::steady() const {
  return change <= kSteadyChange;
}

double BenchResult::compute_share() const {
  return compute_seconds(*this) / run.seconds;
}

double BenchResult::memory_share() const {
  return memory_seconds(*this) / run.seconds;
}

bool BenchResult::memory_bound() const {
  if (shape.phase == Phase::decode && shape.batch == 1) return true;
  return memory_seconds(*this) >= compute_seconds(*this);
}

double BenchResult::share() const {
  return std::min(1.0, memory_bound() ? memory_share() : compute_share());
}

std::string BenchReport::text() const {
  std::string text =
      fmt::format("{}: {} of weights, KV {} {} per token, {} kernels, {}\n", model, human_bytes(weight_bytes),
                  kv_format, human_bytes(kv_bytes_per_token), kernels, device);
  text += fmt::format("machine: reads {:.1f} GB/s ({}), int8 {:.0f} GOPS ({}), f32 {:.0f} GFLOPS ({})",
                      machine.read_gb_s, machine.read_method, machine.int8_gops, machine.int8_instruction,
                      machine.f32_gflops, machine.f32_instruction);
  if (machine.has_bf16())
    text += fmt::format(", bf16 {:.0f} GFLOPS ({})", machine.bf16_gflops, machine.bf16_instruction);
  text += "\n\n";
  text += fmt::format("{:8} {:>7} {:>6} {:>7} {:>10} {:>8}  {:8} {:>9} {:>8} {:>7}{}\n", "phase", "tokens",
                      "batch", "depth", "tok/s", "share", "bound", "ops/byte", "GOPS", "GB/s",
                      cost_per_hour > 0 ? fmt::format("{:>12}", "a million") : "");
  bool unsteady = false;
  bool cached = false;
  for (const BenchResult& result : results) {
    const bool above = result.memory_bound() && result.memory_share() > 1;
    const std::string marks = fmt::format("{}{}", result.steady() ? "" : " ~", above ? " *" : "");
    const std::string cost =
        cost_per_hour > 0 ? fmt::format("{:>12.4g}", result.cost_of_million(cost_per_hour)) : "";
    text += fmt::format("{:8} {:>7} {:>6} {:>7} {:>10.1f} {:>8}  {:8} {:>9.1f} {:>8.1f} {:>7.2f}{}{}\n",
                        name(result.shape.phase), result.shape.tokens, result.shape.batch, result.shape.depth,
                        result.tokens_per_second(), percent(result.share()),
                        result.memory_bound() ? "memory" : "compute", result.run.cost.ops_per_byte(),
                        result.gops(), result.run.cost.bytes() / result.run.seconds / 1e9, cost, marks);
    unsteady |= !result.steady();
    cached |= above;
  }
  if (unsteady) text += "~ the machine's own limits moved by more than 10 % around this run: measure again\n";
  if (cost_per_hour > 0)
    text += fmt::format(
        "a million: what a million tokens cost at {:.4g} an hour, the machine busy with nothing else\n",
        cost_per_hour);
  if (cached) text += "* more than memory can give: part of what it reads stayed in the CPU's caches\n";
  return text;
}

OrderedJson BenchReport::json() const {
  OrderedJson object = {{"machine",
                         {{"read_gb_s", machine.read_gb_s},
                          {"int8_gops", machine.int8_gops},
                          {"f32_gflops", machine.f32_gflops},
                          {"bf16_gflops", machine.bf16_gflops},
                          {"read_method", machine.read_method},
                          {"int8_instruction", machine.int8_instruction},
                          {"f32_instruction", machine.f32_instruction},
                          {"bf16_instruction", machine.bf16_instruction},
                          {"device", device},
                          {"threads", threads}}},
                        {"model", model},
                        {"weight_bytes", weight_bytes},
                        {"packed_bytes", packed_bytes},
                        {"kernels", kernels},
                        {"kv", {{"format", kv_format}, {"bytes_per_token", kv_bytes_per_token}}},
                        {"results", OrderedJson::array()}};
  for (const BenchResult& result : results) {
    const StepCost& cost = result.run.cost;
    object["results"].push_back({{"phase", name(result.shape.phase)},
                                 {"tokens", result.shape.tokens},
                                 {"batch", result.shape.batch},
                                 {"depth", result.shape.depth},
                                 {"tok_s", result.tokens_per_second()},
                                 {"share", result.share()},
                                 {"bound", result.memory_bound() ? "memory" : "compute"},
                                 {"compute_share", result.compute_share()},
                                 {"memory_share", result.memory_share()},
                                 {"ops_per_byte", cost.ops_per_byte()},
                                 {"gops", result.gops()},
                                 {"gb_s", cost.bytes() / result.run.seconds / 1e9},
                                 {"seconds", result.run.seconds},
                                 {"steady", result.steady()},
                                 {"limits",
                                  {{"read_gb_s", result.limits.read_gb_s},
                                   {"int8_gops", result.limits.int8_gops},
                                   {"f32_gflops", result.limits.f32_gflops},
                                   {"bf16_gflops", result.limits.bf16_gflops}}}});
    if (cost_per_hour > 0)
      object["results"].back()["cost_of_million"] = result.cost_of_million(cost_per_hour);
  }
  return object;
}

std::string BenchReport::svg() const {
  Roofline roofline{
      .title = fmt::format("{}, {}", model, device),
      .read_gb_s = machine.read_gb_s,
      .roofs = {{fmt::format("int8 {:.0f} GOPS ({})", machine.int8_gops, machine.int8_instruction),
                 machine.int8_gops},
                {fmt::format("f32 {:.0f} GFLOPS ({})", machine.f32_gflops, machine.f32_instruction),
                 machine.f32_gflops}},
      .points = {}};
  if (machine.has_bf16()) {
    roofline.roofs.push_back(
        {fmt::format("bf16 {:.0f} GFLOPS ({})", machine.bf16_gflops, machine.bf16_instruction),
         machine.bf16_gflops});
  }
  for (const BenchResult& result : results) {
    const double limit_seconds = std::max(compute_seconds(result), memory_seconds(result));
    roofline.points.push_back({.label = label(result),
                               .kind = result.shape.phase == Phase::prefill ? RooflinePoint::Kind::round
                                                                            : RooflinePoint::Kind::square,
                               .ops_per_byte = result.run.cost.ops_per_byte(),
                               .gops = result.gops(),
                               .limit_gops = result.run.cost.ops() / limit_seconds / 1e9});
  }
  return roofline_svg(roofline);
}

}  // namespace quire::cli
