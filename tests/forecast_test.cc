// What `inspect --what-if` predicts: against sums by hand, against a machine that is simulated, and against the steps that an
// engine then makes.
#include "cli/forecast.h"

#include <algorithm>
#include <utility>

#include <gtest/gtest.h>

#include "fake_backend.h"
#include "golden_model.h"

namespace quire::cli {
namespace {

constexpr uint32_t kPage = 4;

MachineRates rates(double read_gb_s, double gflops) {
  MachineRates machine;
  machine.read_gb_s = read_gb_s;
  machine.int8_gops = machine.f32_gflops = machine.bf16_gflops = gflops;
  return machine;
}

class Forecasting : public testing::Test {
 protected:
  Forecast forecast(const MachineRates& machine, const ReachedShares& shares = {}) const {
    return Forecast(costs_, layout_, machine, shares);
  }

  // One step on a machine that reaches these shares of its limits, by the letter of what a forecast assumes.
  double step_seconds(const StepShape& shape, const MachineRates& machine, const ReachedShares& s) const {
    const StepCost products = costs_.products(shape), attention = costs_.attention(shape, layout_);
    const double of_products = shape.tokens == 1 ? s.decode_products : s.prefill_products;
    const double of_attention = shape.tokens == 1 ? s.decode_attention : s.prefill_attention;
    return std::max(products.bytes() / machine.read_gb_s / s.reading_weights,
                    products.ops() / machine.f32_gflops / of_products) /
               1e9 +
           std::max(attention.bytes() / machine.read_gb_s, attention.ops() / machine.f32_gflops) /
               of_attention / 1e9;
  }

  Engine make_engine(uint32_t sequences, uint32_t chunk) {
    EngineModel model = model_.engine_model();
    model.backend = &backend_;
    EngineOptions options{.context = 96, .max_sequences = sequences, .prefill_chunk = chunk};
    options.page_tokens = kPage;
    options.sharing = false;
    options.kv_formats = KvFormat::f16;
    return Engine(model, options);
  }
  // Of different `first` nothing is in common.
  static Request request(uint32_t prompt, uint32_t answer, uint32_t first = 1) {
    Request request;
    for (uint32_t i = 0; i < prompt; ++i) request.prompt.push_back(first + i);
    request.max_tokens = answer;
    request.ignore_end = true;
    return request;
  }

  BareModel model_{golden_folder("llama3"), exact_kernels(), 1};
  FakeBackend backend_;
  CostModel costs_{model_.weights, backend_};
  KvLayout layout_ = make_kv_layout(kv_shapes(model_.spec, KvFormat::f16), kPage);
};

const MachineRates kReads = rates(1, 1e9), kComputes = rates(1e9, 1);  // nothing else takes it any time

TEST_F(Forecasting, OneTokenTakesWhatItsBytesOrItsOperationsTakeAtTheLimit) {
  const StepCost cost = costs_.step({.sequences = 1, .tokens = 1, .depth = 40, .logit_rows = 1}, layout_);
  EXPECT_DOUBLE_EQ(forecast(kReads).next_token(40, 1).seconds, cost.bytes() / 1e9);
  EXPECT_DOUBLE_EQ(forecast(kComputes).next_token(40, 1).seconds, cost.ops() / 1e9);
}

TEST_F(Forecasting, APromptTakesTheSumOfItsChunks) {
  const MachineRates machine = rates(3, 20);
  const ReachedShares s{.prefill_products = 0.5, .prefill_attention = 0.25};
  double seconds = 0;
  for (const auto& [depth, tokens] : {std::pair{0u, 30u}, {30u, 30u}, {60u, 11u}})
    seconds += step_seconds({1, tokens, depth, depth == 60 ? 1u : 0u}, machine, s);
  EXPECT_DOUBLE_EQ(forecast(machine, s).first_token(71, 30).seconds, seconds);
  EXPECT_DOUBLE_EQ(forecast(machine, s).first_token(71, 500).seconds,
                   step_seconds({1, 71, 0, 1}, machine, s));
}

TEST_F(Forecasting, NothingToComputeTakesNoTimeAndMoreNeverTakesLess) {
  for (const MachineRates& machine : {kReads, kComputes, rates(3, 20)}) {
    const Forecast predicted = forecast(machine, {.reading_weights = 0.3, .decode_attention = 1000});
    EXPECT_EQ(predicted.first_token(0, 64).seconds, 0);
    double before = 0;
    for (uint32_t prompt = 1; prompt < 3000; prompt += 7) {
      const double seconds = predicted.first_token(prompt, 64).seconds;
      ASSERT_GE(seconds, before) << prompt;
      before = seconds;
    }
    for (uint32_t batch = 1; batch < 300; ++batch) {
      const double shallow = predicted.next_token(0, batch).seconds;
      ASSERT_GT(shallow, 0);
      ASSERT_GE(predicted.next_token(0, batch + 1).seconds, shallow) << batch;
      ASSERT_GE(predicted.next_token(1000, batch).seconds, shallow) << batch;
    }
  }
}

TEST_F(Forecasting, HalfAShareTakesTwiceTheTimeOfItsPart) {
  const double whole = forecast(kReads).next_token(64, 1).seconds;
  const StepCost attention = costs_.attention({1, 1, 64, 1}, layout_);
  const double slow_attention = forecast(kReads, {.decode_attention = 0.5}).next_token(64, 1).seconds;
  EXPECT_NEAR(slow_attention - whole, attention.bytes() / 1e9, 1e-12);
  const ReachedShares half{.reading_weights = 0.5, .decode_attention = 0.5};
  EXPECT_DOUBLE_EQ(forecast(kReads, half).next_token(64, 1).seconds, 2 * whole);
}

TEST_F(Forecasting, TheBoundIsThePartThatTakesMost) {
  EXPECT_EQ(forecast(kReads).next_token(0, 1).bound, Bound::reading_weights);
  EXPECT_EQ(forecast(kReads).next_token(10'000'000, 1).bound, Bound::reading_kv);
  EXPECT_EQ(forecast(kComputes).first_token(16, 16).bound, Bound::computing_products);
  EXPECT_EQ(forecast(kComputes).first_token(100'000, 100'000).bound, Bound::computing_attention);
}

TEST(SharesOf, AreThoseThatTwoDepthsWereComputedWith) {
  const PartShares shares = shares_of({.shallow_seconds = 3 / 0.6 + 0.1 / 0.2,
                                       .deep_seconds = 3 / 0.6 + 5 / 0.2,
                                       .products = 3,
                                       .shallow_attention = 0.1,
                                       .deep_attention = 5});
  EXPECT_NEAR(shares.products, 0.6, 1e-12);
  EXPECT_NEAR(shares.attention, 0.2, 1e-12);
}

TEST(SharesOf, StayWithinBoundsHoweverMuchTheMeasurementWasDisturbed) {
  for (const double shallow : {1e-9, 1e-3, 1.0, 1e6}) {
    for (const double deep : {0.0, 1e-9, 1e-3, 0.999, 1.0, 1.001, 1e9}) {
      for (const double attention : {0.0, 1e-12, 1.0, 1e9}) {
        const PartShares shares = shares_of({.shallow_seconds = shallow,
                                             .deep_seconds = deep,
                                             .products = 1,
                                             .shallow_attention = attention / 10,
                                             .deep_attention = attention});
        for (const double share : {shares.products, shares.attention}) {
          ASSERT_GE(share, 1e-3) << shallow << " " << deep << " " << attention;
          ASSERT_LE(share, 1e3) << shallow << " " << deep << " " << attention;
        }
      }
    }
  }
}

// Each phase lasts as long as a machine of these shares would take for it.
TEST_F(Forecasting, WhatIsCalibratedOnASimulatedMachinePredictsItsTimes) {
  const MachineRates machine = rates(10, 100);
  const ReachedShares truth{.reading_weights = 0.7,
                            .prefill_products = 0.5,
                            .decode_products = 0.5,
                            .prefill_attention = 0.6,
                            .decode_attention = 0.4};
  const auto run = [&](const PhaseShape& shape) {
    PhaseRun run{.seconds = 0, .tokens = double(shape.tokens) * shape.batch, .cost = {}};
    const uint32_t chunk = shape.phase == Phase::prefill ? shape.tokens : 1;
    for (uint32_t done = 0; done < shape.tokens; done += chunk)
      run.seconds += step_seconds({shape.batch, chunk, shape.depth + done, shape.batch}, machine, truth);
    return run;
  };
  for (const uint32_t batch : {1u, 16u}) {
    const Subject subject{run, &layout_, batch};
    const std::vector<ReachedShares> shares = calibrate({&subject, 1}, costs_, machine, 8192, 0);
    ASSERT_EQ(shares.size(), 1u);
    const Forecast predicted = forecast(machine, shares[0]);
    for (const uint32_t prompt : {2u, 100u, 512u, 2000u, 8000u}) {
      double expected = 0;
      for (uint32_t done = 0; done < prompt; done += 512) {
        const uint32_t count = std::min(512u, prompt - done);
        expected += step_seconds({1, count, done, done + count == prompt ? 1u : 0u}, machine, truth);
      }
      EXPECT_NEAR(predicted.first_token(prompt, 512).seconds, expected, 0.03 * expected) << prompt;
    }
    for (const uint32_t depth : {0u, 100u, 1000u, 8000u}) {
      const double expected = step_seconds({batch, 1, depth, batch}, machine, truth);
      EXPECT_NEAR(predicted.next_token(depth, batch).seconds, expected, 0.03 * expected) << depth;
    }
  }
}

TEST_F(Forecasting, AQueueOfOneAtATimeTakesWhatWasPredictedForEachOfIt) {
  for (const auto& [machine, of] : {std::pair{kReads, &StepCost::bytes}, {kComputes, &StepCost::ops}}) {
    Engine engine = make_engine(1, 16);
    double predicted = 0;
    for (const uint32_t prompt : {5u, 16u, 17u, 50u}) {
      constexpr uint32_t kAnswer = 6;
      engine.submit(request(prompt, kAnswer));
      predicted += forecast(machine).first_token(prompt, 16).seconds;
      for (uint32_t i = 0; i + 1 < kAnswer; ++i)
        predicted += forecast(machine).next_token(prompt + i, 1).seconds;
    }
    while (engine.step()) {
    }
    EXPECT_NEAR((engine.steps().cost().*of)() / 1e9, predicted, 1e-9 * predicted);
  }
}

TEST_F(Forecasting, AStepOfManySequencesTakesWhatWasPredictedForTheirBatch) {
  Engine engine = make_engine(4, 96);
  for (uint32_t i = 0; i < 4; ++i) engine.submit(request(10, 9, 1 + i));
  while (engine.step()) {
  }
  uint32_t depth = 10;
  for (const StepRecord& step : engine.steps().since(0)) {
    if (step.prompt_tokens > 0) continue;
    ASSERT_EQ(step.runs, 4u);
    EXPECT_NEAR(step.cost.bytes() / 1e9, forecast(kReads).next_token(depth, 4).seconds, 1e-15);
    EXPECT_NEAR(step.cost.ops() / 1e9, forecast(kComputes).next_token(depth, 4).seconds, 1e-15);
    ++depth;
  }
  EXPECT_EQ(depth, 18u);
}

}  // namespace
}  // namespace quire::cli
