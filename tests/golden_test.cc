// Every architecture, as Transformers saved it, against the logits and the greedy answer Transformers
// computed.
#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "base/error.h"
#include "golden_model.h"

namespace quire {
namespace {

class Goldens : public testing::TestWithParam<std::string> {};

// The largest difference, as a share of the largest logit.
double relative_difference(std::span<const float> actual, std::span<const float> expected) {
  EXPECT_EQ(actual.size(), expected.size());
  double difference = 0;
  double largest = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (!std::isfinite(actual[i])) return INFINITY;
    difference = std::max(difference, std::fabs(double(actual[i]) - double(expected[i])));
    largest = std::max(largest, std::fabs(double(expected[i])));
  }
  return difference / largest;
}

TEST_P(Goldens, LogitsAreThoseOfTransformers) {
  const Golden golden = read_golden(GetParam());
  BareModel model(golden_folder(golden.name), exact_kernels(), 2);
  ASSERT_EQ(model.spec.vocab, golden.vocab);
  const std::vector<float> logits = all_logits(model, golden.prompt, uint32_t(golden.prompt.size()));
  EXPECT_LT(relative_difference(logits, golden.logits), 1e-4);
}

TEST_P(Goldens, GreedyAnswerIsThatOfTransformers) {
  const Golden golden = read_golden(GetParam());
  BareModel model(golden_folder(golden.name), exact_kernels(), 2);
  EngineOptions options{.context = uint32_t(golden.prompt.size() + golden.greedy.size() + 1)};
  options.kv_formats = KvFormat::f32;
  options.prefill_chunk = 7;
  Engine engine(model.engine_model(), options);
  Request request;
  request.prompt = golden.prompt;
  request.sampling.temperature = 0;
  request.max_tokens = uint32_t(golden.greedy.size());
  EXPECT_EQ(engine.run(request).tokens, golden.greedy);
  EXPECT_EQ(engine.kv().stats().held_pages, 0u);
}

INSTANTIATE_TEST_SUITE_P(EveryArchitecture, Goldens, testing::ValuesIn(golden_names()),
                         [](const auto& info) { return info.param; });

// What a GPU lacks the operations for it says before anything is loaded.
bool is_refused(const Golden& golden, const Backend& gpu) {
  const ModelSpec spec = read_model_spec(*open_model_file(golden_folder(golden.name)));
  if (gpu.traits().recurrent || std::ranges::none_of(spec.layers, &LayerSpec::is_recurrent)) return false;
  EXPECT_THROW(check_computable(spec, gpu.traits()), Error);
  return true;
}

TEST_P(Goldens, LogitsOfTheExactKernelsOfAGpuAreThoseOfTransformers) {
  std::unique_ptr<Backend> gpu = open_gpu("exact");
  if (gpu == nullptr) GTEST_SKIP() << "this machine has no GPU";
  const Golden golden = read_golden(GetParam());
  if (is_refused(golden, *gpu)) return;
  BareModel model(golden_folder(golden.name), std::move(gpu));
  const std::vector<float> logits = all_logits(model, golden.prompt, 7);
  EXPECT_LT(relative_difference(logits, golden.logits), 2e-3);
}

// Weights, activations and pages of bf16: what that costs is a rounding of 2^-9 here and there.
TEST_P(Goldens, LogitsOfAGpuAreNear) {
  std::unique_ptr<Backend> gpu = open_gpu();
  if (gpu == nullptr) GTEST_SKIP() << "this machine has no GPU";
  const Golden golden = read_golden(GetParam());
  if (is_refused(golden, *gpu)) return;
  BareModel model(golden_folder(golden.name), std::move(gpu));
  const std::vector<float> logits =
      all_logits(model, golden.prompt, uint32_t(golden.prompt.size()), KvFormat::bf16);
  const double difference = relative_difference(logits, golden.logits);
  RecordProperty("difference", std::to_string(difference));
  EXPECT_LT(difference, 0.08);
}

}  // namespace
}  // namespace quire
