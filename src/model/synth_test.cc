#include "model/synth.h"

#include <map>

#include <gtest/gtest.h>

#include "model/model_spec.h"
#include "model/placement.h"

namespace quire {
namespace {

// In billions, as their makers count them.
const std::map<std::string, double> kParameters = {
    {"llama-8b", 8.03},           {"ministral-3-8b", 8.5},
    {"command-r7b", 8.03},        {"qwen2-moe", 14.3},
    {"qwen3-30b-a3b", 30.5},      {"gpt-oss-20b", 20.9},
    {"ernie-4.5-21b-a3b", 21.8},  {"glm-4.5-air", 106.8},
    {"minimax-m2", 228.7},        {"qwen3.5-35b-a3b", 34.7},
    {"qwen3-next-80b-a3b", 79.7}, {"lfm2-1.2b", 1.17},
    {"granite-4-h-tiny", 6.94},   {"nemotron-nano-9b-v2", 8.89},
    {"gemma3n-e2b", 4.46},        {"gemma3n-e4b", 6.87},
    {"falcon-h1-7b", 7.59},       {"qwen3-8b", 8.19},
    {"gemma3-4b", 3.88},          {"phi-4", 14.66},
    {"llama-70b", 70.55},         {"minimax-m3", 428},
};

TEST(SynthShapes, HaveTheParametersOfTheirModels) {
  for (const auto& [name, billions] : kParameters) {
    const std::unique_ptr<ModelFile> head = synth_head(synth_shape(name), TypeMix("q8_0"));
    double parameters = 0, bytes = 0;
    for (const TensorEntry& tensor : head->tensors()) {
      double values = 1;
      for (const uint64_t size : tensor.shape) values *= double(size);
      parameters += values;
      bytes += double(tensor.bytes);
    }
    EXPECT_NEAR(parameters / 1e9, billions, 0.02 * billions) << name;
    EXPECT_NEAR(bytes / parameters, 34.0 / 32, 0.05) << name;  // of blocks of q8_0, but for routers and norms
  }
}

TEST(SynthShapes, AreSpecsOfTheirFamilies) {
  for (const SynthShape& shape : synth_shapes()) {
    const ModelSpec spec = read_model_spec(*synth_head(shape, TypeMix("q4_0")));
    EXPECT_EQ(spec.architecture, shape.architecture);
    EXPECT_EQ(spec.layers.size(), shape.layers);
    const bool mixed = std::holds_alternative<ExpertMlpSpec>(spec.layers.back().mlp);
    EXPECT_EQ(mixed, expert_layers(spec) > 0);
  }
}

}  // namespace
}  // namespace quire
