// Layers of experts beside dense ones, each compared with a plain computation of the same, or with the same model said in
// another way.
#include "layers_case.h"

namespace quire {
namespace {

Metadata small_mixtral(uint64_t leading_dense) {
  Metadata metadata = small_llama();
  metadata.set("llama.expert_count", uint64_t(5));
  metadata.set("llama.expert_used_count", uint64_t(2));
  metadata.set("llama.expert_feed_forward_length", uint64_t(24));
  metadata.set("llama.leading_dense_block_count", leading_dense);
  return metadata;
}

TEST(ExpertLayers, TheFirstMayBeDenseBeforeThoseOfExperts) {
  const auto file = make(small_mixtral(2));
  EXPECT_NE(file->find("blk.1.ffn_up.weight"), nullptr);
  EXPECT_EQ(file->find("blk.1.ffn_gate_inp.weight"), nullptr);
  EXPECT_EQ(file->find("blk.2.ffn_up.weight"), nullptr);
  EXPECT_EQ(file->find("blk.2.ffn_up_exps.weight")->shape, (std::vector<uint64_t>{5, 24, 32}));
  expect_near(logits(file, exact_kernels()), plain_logits(*file, some_tokens()));
  EXPECT_EQ(logits(file, scalar_kernels()), logits(file, scalar_kernels(), 7));
}

TEST(ExpertLayers, AsManyDenseOnesAsThereAreLayersLeaveNoExperts) {
  const auto dense = make(small_mixtral(4));
  EXPECT_EQ(logits(dense, scalar_kernels()), logits(make(small_llama()), scalar_kernels()));
}

TEST(ExpertLayers, ADenseOneGivesTheBitsOfItsOnlyExpert) {
  Metadata metadata = small_mixtral(2);
  metadata.set("llama.expert_count", uint64_t(1));
  metadata.set("llama.expert_used_count", uint64_t(1));
  metadata.set("llama.expert_feed_forward_length", uint64_t(48));
  const auto mixed = make(metadata);
  for (const char* layer : {"blk.2.", "blk.3."}) {
    for (const char* name : {"ffn_gate", "ffn_up", "ffn_down"})
      mixed->copy(std::string(layer) + name + "_exps.weight", "blk.0." + std::string(name) + ".weight");
  }
  const auto dense = make(small_llama());
  for (const char* layer : {"blk.2.", "blk.3."}) {
    for (const char* name : {"ffn_gate", "ffn_up", "ffn_down"})
      dense->copy(std::string(layer) + name + ".weight", "blk.0." + std::string(name) + ".weight");
  }
  EXPECT_EQ(logits(mixed, scalar_kernels()), logits(dense, scalar_kernels()));
}

// Every layer of experts chooses so.
std::shared_ptr<MadeFile> make_routed(const Routing& routing, ShareUse use = ShareUse::of_outputs) {
  Metadata metadata = small_mixtral(1);
  metadata.set("llama.expert_count", uint64_t(12));
  metadata.set("llama.expert_used_count", uint64_t(3));
  return make(metadata, [=](ModelSpec& spec) {
    for (LayerSpec& layer : spec.layers) {
      if (auto* experts = std::get_if<ExpertMlpSpec>(&layer.mlp)) {
        experts->routing = routing;
        experts->share_use = use;
      }
    }
  });
}

void expect_plain_and_whole(const std::shared_ptr<const MadeFile>& file) {
  expect_near(logits(file, exact_kernels()), plain_logits(*file, some_tokens()), 3e-5);
  EXPECT_EQ(logits(file, scalar_kernels()), logits(file, scalar_kernels(), 7));
}

TEST(ExpertLayers, OfExpertsChooseByEveryKindOfScore) {
  for (const RouterScore score : {RouterScore::softmax, RouterScore::sigmoid, RouterScore::softmax_of_chosen,
                                  RouterScore::sqrt_softplus}) {
    for (const bool normalized : {true, false}) {
      SCOPED_TRACE(int(score));
      expect_plain_and_whole(make_routed({.score = score, .normalized = normalized, .scale = 1.7f}));
    }
  }
  expect_plain_and_whole(make_routed({.score = RouterScore::sparse_mixer, .nearness = 0.6f}));
}

TEST(ExpertLayers, OfExpertsChooseWithABiasThatIsNotInTheirShares) {
  const Routing routing{.score = RouterScore::sigmoid, .scale = 2.5f};
  const auto biased = make_routed(routing);
  biased->make_optional("exp_probs_b.bias");
  ASSERT_NE(biased->find("blk.2.exp_probs_b.bias"), nullptr);
  expect_plain_and_whole(biased);
  EXPECT_NE(logits(biased, exact_kernels()), logits(make_routed(routing), exact_kernels()));
  const auto without = make_routed(routing);
  without->make_optional("exp_probs_b.bias");
  for (const char* layer : {"blk.1.", "blk.2.", "blk.3."})
    without->clear(layer + std::string("exp_probs_b.bias"));
  EXPECT_EQ(logits(without, exact_kernels()), logits(make_routed(routing), exact_kernels()));
}

TEST(ExpertLayers, OfExpertsChooseAmongTheBestGroups) {
  const auto file = make_routed({.score = RouterScore::sigmoid, .groups = 4, .groups_used = 2});
  file->make_optional("exp_probs_b.bias");
  expect_plain_and_whole(file);
  expect_plain_and_whole(make_routed({.groups = 6, .groups_used = 2, .group_best = 1}));
  // All groups kept are no groups at all.
  EXPECT_EQ(logits(make_routed({.groups = 4, .groups_used = 4}), exact_kernels()),
            logits(make_routed({}), exact_kernels()));
}

TEST(ExpertLayers, OfExpertsMayScaleInputsInsteadOfOutputs) {
  expect_plain_and_whole(
      make_routed({.score = RouterScore::sigmoid, .normalized = false}, ShareUse::of_inputs));
}

TEST(ExpertLayers, OfExpertsMayHaveAnMlpBesideThem) {
  for (const bool gated : {false, true}) {
    const auto file = make(small_mixtral(1), [=](ModelSpec& spec) {
      for (size_t l = 1; l < spec.layers.size(); ++l)
        spec.layers[l].shared = DenseMlpSpec{.width = 40, .suffix = "_shexp", .gated_output = gated};
    });
    EXPECT_EQ(file->find("blk.0.ffn_up_shexp.weight"), nullptr);
    EXPECT_EQ(file->find("blk.1.ffn_up_shexp.weight")->shape, (std::vector<uint64_t>{40, 32}));
    EXPECT_EQ(file->find("blk.1.ffn_gate_inp_shexp.weight") != nullptr, gated);
    expect_plain_and_whole(file);
  }
}

TEST(ExpertLayers, ThatRunSideBySideMayHaveExpertsAndAnMlpBesideThem) {
  expect_plain_and_whole(make(small_mixtral(0), [](ModelSpec& spec) {
    for (LayerSpec& layer : spec.layers) {
      layer.norms.mlp_input = BlockInput::stream_before;
      layer.shared = DenseMlpSpec{.width = 24, .suffix = "_shexp", .gated_output = true};
    }
  }));
}

}  // namespace
}  // namespace quire
