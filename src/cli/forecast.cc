#include "cli/forecast.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "base/clock.h"

namespace quire::cli {
namespace {

constexpr uint32_t kPrefillTokens = 128;
constexpr uint32_t kDecodeTokens = 8;
constexpr uint32_t kDeep = 2048;
constexpr int kRounds = 5;

}  // namespace

std::string_view name(Bound bound) {
  switch (bound) {
    case Bound::reading_weights:
      return "reading weights";
    case Bound::computing_products:
      return "computing products";
    case Bound::reading_kv:
      return "reading KV";
    case Bound::computing_attention:
      break;
  }
  return "computing attention";
}

double reading_seconds(const StepCost& cost, const MachineRates& machine) {
  return cost.bytes() / (machine.read_gb_s * 1e9);
}

double computing_seconds(const StepCost& cost, const MachineRates& machine) {
  return cost.int8_ops / (machine.int8_gops * 1e9) + cost.f32_ops / (machine.f32_gflops * 1e9) +
         cost.bf16_ops / (machine.bf16_gflops * 1e9);
}

PartShares shares_of(const TwoDepths& m) {
  constexpr double kLeast = 1e-3, kMost = 1e3;
  PartShares shares;
  const double more = m.deep_seconds - m.shallow_seconds;
  shares.attention =
      std::clamp(more > 0 ? (m.deep_attention - m.shallow_attention) / more : kMost, kLeast, kMost);
  const double rest = m.shallow_seconds - m.shallow_attention / shares.attention;
  // Attention at the shallow depth is little: where it seems to be more than half, something disturbed.
  shares.products = std::clamp(m.products / std::max(rest, m.shallow_seconds / 2), kLeast, kMost);
  return shares;
}

Forecast::Time Forecast::Parts::time() const {
  Time time;
  size_t largest = 0;
  for (size_t i = 0; i < std::size(seconds); ++i) {
    time.seconds += seconds[i];
    if (seconds[i] > seconds[largest]) largest = i;
  }
  time.bound = Bound(largest);
  return time;
}

void Forecast::add(Parts& parts, const StepShape& shape) const {
  const auto add_larger = [&](Bound reading, double read, Bound computing, double computed) {
    parts.seconds[size_t(read >= computed ? reading : computing)] += std::max(read, computed);
  };
  const bool decode = shape.tokens == 1;
  const StepCost products = costs_.products(shape);
  add_larger(
      Bound::reading_weights, reading_seconds(products, machine_) / shares_.reading_weights,
      Bound::computing_products,
      computing_seconds(products, machine_) / (decode ? shares_.decode_products : shares_.prefill_products));
  const StepCost attention = costs_.attention(shape, layout_);
  const double share = decode ? shares_.decode_attention : shares_.prefill_attention;
  add_larger(Bound::reading_kv, reading_seconds(attention, machine_) / share, Bound::computing_attention,
             computing_seconds(attention, machine_) / share);
}

Forecast::Time Forecast::first_token(uint32_t prompt, uint32_t chunk) const {
  CHECK(chunk > 0);
  Parts parts;
  for (uint32_t done = 0; done < prompt;) {
    const uint32_t count = std::min(chunk, prompt - done);
    add(parts,
        {.sequences = 1, .tokens = count, .depth = done, .logit_rows = done + count == prompt ? 1u : 0u});
    done += count;
  }
  return parts.time();
}

Forecast::Time Forecast::next_token(uint32_t depth, uint32_t batch) const {
  Parts parts;
  add(parts, {.sequences = batch, .tokens = 1, .depth = depth, .logit_rows = batch});
  return parts.time();
}

namespace {

// The least seconds that one step of each phase took.
struct Measured {
  double prefill[2], decode[2];  // shallow, deep
  double batch;                  // of decode, shallow
};

struct Sizes {
  uint32_t prompt, decoded, deep;
};

// Whatever disturbs a run can only make it slower.
void measure_round(const Subject& subject, const Sizes& sizes, Measured& least) {
  const auto keep = [&](double& seconds, const PhaseShape& shape) {
    const PhaseRun run = subject.run(shape);
    const double steps = shape.phase == Phase::decode ? run.tokens / shape.batch : run.tokens / shape.tokens;
    seconds = std::min(seconds, run.seconds / steps);
  };
  for (const uint32_t deep : {0, 1}) {
    keep(least.prefill[deep], {Phase::prefill, sizes.prompt, 1, deep * sizes.deep});
    keep(least.decode[deep], {Phase::decode, sizes.decoded, 1, deep * sizes.deep});
  }
  if (subject.batch > 1) keep(least.batch, {Phase::decode, sizes.decoded, subject.batch, 0});
}

ReachedShares reached(const Subject& subject, const CostModel& costs, const MachineRates& machine,
                      const Sizes& sizes, const Measured& least) {
  const auto attention = [&](uint32_t tokens, uint32_t depth) {
    const StepCost cost =
        costs.attention({.sequences = 1, .tokens = tokens, .depth = depth, .logit_rows = 1}, *subject.layout);
    return std::max(reading_seconds(cost, machine), computing_seconds(cost, machine));
  };
  const uint32_t middle = sizes.decoded / 2;  // the token there stands for all that were decoded
  const StepCost prompt =
      costs.products({.sequences = 1, .tokens = sizes.prompt, .depth = 0, .logit_rows = 1});
  const StepCost token = costs.products({});
  const PartShares prefill = shares_of({.shallow_seconds = least.prefill[0],
                                        .deep_seconds = least.prefill[1],
                                        .products = computing_seconds(prompt, machine),
                                        .shallow_attention = attention(sizes.prompt, 0),
                                        .deep_attention = attention(sizes.prompt, sizes.deep)});
  const PartShares decode = shares_of({.shallow_seconds = least.decode[0],
                                       .deep_seconds = least.decode[1],
                                       .products = reading_seconds(token, machine),
                                       .shallow_attention = attention(1, middle),
                                       .deep_attention = attention(1, sizes.deep + middle)});
  ReachedShares shares{.reading_weights = decode.products,
                       .prefill_products = prefill.products,
                       .decode_products = prefill.products,
                       .prefill_attention = prefill.attention,
                       .decode_attention = decode.attention};
  // One row's products cannot have computed more slowly than they were read.
  const double token_seconds = reading_seconds(token, machine) / decode.products;
  shares.decode_products = std::max(prefill.products, computing_seconds(token, machine) / token_seconds);
  if (subject.batch > 1) {
    const StepCost step =
        costs.products({.sequences = subject.batch, .tokens = 1, .depth = 0, .logit_rows = subject.batch});
    const double rest = least.batch - subject.batch * attention(1, middle) / decode.attention;
    shares.decode_products = computing_seconds(step, machine) / std::max(rest, least.batch / 2);
  }
  return shares;
}

}  // namespace

std::vector<ReachedShares> calibrate(std::span<const Subject> subjects, const CostModel& costs,
                                     const MachineRates& machine, uint32_t context, double seconds) {
  const Sizes sizes{.prompt = std::max(1u, std::min(kPrefillTokens, context / 4)),
                    .decoded = std::max(1u, std::min(kDecodeTokens, context / 4)),
                    .deep = std::min(kDeep, context / 2)};
  constexpr double kNever = std::numeric_limits<double>::infinity();
  std::vector<Measured> least(subjects.size(), {{kNever, kNever}, {kNever, kNever}, kNever});
  const auto start = Clock::now();
  for (int round = 0; round < kRounds; ++round) {
    for (size_t i = 0; i < subjects.size(); ++i) measure_round(subjects[i], sizes, least[i]);
    if (milliseconds_between(start, Clock::now()) > seconds * 1e3) break;  // a large model gets fewer rounds
  }
  std::vector<ReachedShares> shares;
  for (size_t i = 0; i < subjects.size(); ++i) {
    shares.push_back(reached(subjects[i], costs, machine, sizes, least[i]));
    shares.back().reading_weights = shares.front().reading_weights;
    shares.back().prefill_products = shares.front().prefill_products;
  }
  return shares;
}

}  // namespace quire::cli
