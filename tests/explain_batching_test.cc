// Ways of batching, against the same load batched by hand.
#include <cmath>
#include <numeric>
#include <optional>

#include <gtest/gtest.h>

#include "backend/cpu/kernel_choice.h"
#include "base/error.h"
#include "base/json.h"
#include "explain/batching.h"
#include "golden_model.h"

namespace quire {
namespace {

BareModel open(const std::string& name) {
  return BareModel(golden_folder(name), kernels_named("auto"), 2);
}

// One load by hand: whoever runs draws a token in each pass.
struct ByHand {
  std::vector<uint32_t> waits;
  uint32_t passes = 0;
  double unused = 0;  // bytes, summed over the passes
};
ByHand batch_by_hand(const std::vector<Arrival>& load, const BatchingWay& way, uint32_t at_once,
                     double bytes_per_token) {
  struct Running {
    size_t request;
    uint32_t drawn = 0;
  };
  ByHand result;
  result.waits.resize(load.size());
  std::vector<Running> running;
  size_t next = 0;
  for (uint32_t pass = 0; next < load.size() || !running.empty(); ++pass) {
    if (way.admission == BatchingWay::Admission::continuous || running.empty()) {
      for (; next < load.size() && load[next].pass <= pass && running.size() < at_once; ++next)
        running.push_back({next});
    }
    if (running.empty()) continue;
    ++result.passes;
    for (Running& one : running) {
      if (one.drawn++ == 0) result.waits[one.request] = pass + 1 - load[one.request].pass;
    }
    std::erase_if(running, [&](const Running& one) { return one.drawn == load[one.request].answer_tokens; });
    for (const Running& one : running) {
      const Arrival& arrival = load[one.request];
      const double entries = double(arrival.prompt.size()) + one.drawn - 1;
      const double reserved = way.room == BatchingWay::Room::paged
                                  ? std::ceil(entries / 32) * 32
                                  : double(arrival.prompt.size()) + arrival.max_tokens;
      result.unused += (reserved - entries) * bytes_per_token;
    }
  }
  return result;
}

TEST(ExplainBatching, PassesWaitsAndUnusedBytesAreThoseCountedByHand) {
  BareModel model = open("llama3");
  const Json config = read_json_file(golden_folder("llama3") + "/config.json");
  const double bytes_per_token = config["num_hidden_layers"].get<double>() *
                                 config["num_key_value_heads"].get<double>() *
                                 config["head_dim"].get<double>() * 2 * 2;  // K and V, two bytes
  const std::vector<Arrival> load = make_load(
      {.requests = 14, .seed = 4, .longest_prompt = 12, .longest_answer = 50, .vocab = model.spec.vocab});
  using Way = BatchingWay;
  std::optional<BatchingFigures> first;
  for (const auto admission : {Way::Admission::continuous, Way::Admission::fixed}) {
    for (const auto room : {Way::Room::paged, Way::Room::contiguous}) {
      const Way way{admission, room};
      const BatchingFigures figures =
          run_batching(model.engine_model(), {}, load, way, {.at_once = 3, .kv_bytes = 1 << 20});
      const ByHand expected = batch_by_hand(load, way, 3, bytes_per_token);
      EXPECT_EQ(figures.waits_passes(), expected.waits);
      EXPECT_EQ(figures.worked_passes(), expected.passes);
      EXPECT_NEAR(figures.mean_unused_bytes() * expected.passes, expected.unused, 1e-6 * expected.unused);
      EXPECT_EQ(figures.most_running(), 3u);
      uint64_t tokens = 0;
      for (const Arrival& arrival : load) tokens += arrival.answer_tokens;
      EXPECT_EQ(figures.answer_tokens(), tokens);
      EXPECT_EQ(figures.gaps_ms().size(), tokens - load.size());
      if (!first) first = figures;
      EXPECT_NO_THROW(check_same_answers(*first, figures));
    }
  }
}

TEST(ExplainBatching, ContiguousRoomIsNeverMoreThanThereIsAndPagesLetMoreIn) {
  BareModel model = open("llama3");
  const std::vector<Arrival> load = make_load(
      {.requests = 16, .seed = 2, .longest_prompt = 40, .longest_answer = 120, .vocab = model.spec.vocab});
  using Way = BatchingWay;
  const BatchingOptions options{.at_once = 16};
  const BatchingFigures paged =
      run_batching(model.engine_model(), {}, load, {Way::Admission::continuous, Way::Room::paged}, options);
  const BatchingFigures contiguous = run_batching(
      model.engine_model(), {}, load, {Way::Admission::continuous, Way::Room::contiguous}, options);
  EXPECT_EQ(paged.kv_bytes, contiguous.kv_bytes);
  for (const PassAccount& pass : contiguous.passes) EXPECT_LE(pass.reserved_bytes, contiguous.kv_bytes);
  for (const PassAccount& pass : paged.passes) EXPECT_LE(pass.reserved_bytes, paged.kv_bytes);
  EXPECT_GT(paged.most_running(), contiguous.most_running());
  EXPECT_GT(paged.fitting(), contiguous.fitting());
  EXPECT_LT(paged.unused_share(), contiguous.unused_share());
  EXPECT_NO_THROW(check_same_answers(paged, contiguous));
}

TEST(ExplainBatching, LayersWithAWindowChangeNoAnswer) {
  BareModel model = open("gemma2");
  const std::vector<Arrival> load = make_load({.requests = 10, .seed = 6, .vocab = model.spec.vocab});
  using Way = BatchingWay;
  const BatchingFigures first = run_batching(model.engine_model(), {.prefill_chunk = 24}, load,
                                             {Way::Admission::continuous, Way::Room::paged}, {.at_once = 4});
  const BatchingFigures second = run_batching(model.engine_model(), {.prefill_chunk = 24}, load,
                                              {Way::Admission::fixed, Way::Room::contiguous}, {.at_once = 4});
  EXPECT_NO_THROW(check_same_answers(first, second));
  EXPECT_LT(first.worked_passes(), second.worked_passes());
  for (const PassAccount& pass : second.passes) EXPECT_LE(pass.used_bytes, pass.reserved_bytes);
}

TEST(ExplainBatching, ARequestThatCannotFitIsRefused) {
  BareModel model = open("llama3");
  const std::vector<Arrival> load = make_load({.requests = 2, .vocab = model.spec.vocab});
  for (const auto room : {BatchingWay::Room::paged, BatchingWay::Room::contiguous}) {
    EXPECT_THROW(run_batching(model.engine_model(), {}, load, {BatchingWay::Admission::continuous, room},
                              {.at_once = 2, .kv_bytes = 9000}),
                 Error);
  }
}

TEST(ExplainBatching, ALoadIsTheSameForASeedAndOtherForAnother) {
  const LoadShape shape{.requests = 30, .seed = 9, .longest_prompt = 80, .longest_answer = 40, .vocab = 100};
  LoadShape other = shape;
  other.seed = 10;
  const auto load = make_load(shape), again = make_load(shape), another = make_load(other);
  bool differs = false;
  for (size_t i = 0; i < load.size(); ++i) {
    EXPECT_EQ(load[i].prompt, again[i].prompt);
    EXPECT_EQ(load[i].pass, again[i].pass);
    EXPECT_EQ(load[i].answer_tokens, again[i].answer_tokens);
    differs |= load[i].prompt != another[i].prompt;
    EXPECT_GE(load[i].prompt.size(), 10u);
    EXPECT_LE(load[i].prompt.size(), 80u);
    EXPECT_GE(load[i].answer_tokens, 5u);
    EXPECT_LE(load[i].answer_tokens, 40u);
    for (TokenId token : load[i].prompt) EXPECT_LT(token, 100u);
  }
  EXPECT_TRUE(differs);
}

TEST(ExplainBatching, APercentileIsOneOfTheValues) {
  std::vector<double> values(200);
  std::iota(values.begin(), values.end(), 1);
  EXPECT_EQ(percentile_of(values, 0.99), 198);
  EXPECT_EQ(percentile_of(values, 0.5), 100);
  EXPECT_EQ(percentile_of({7}, 0.99), 7);
  EXPECT_EQ(percentile_of({}, 0.99), 0);
}

}  // namespace
}  // namespace quire
