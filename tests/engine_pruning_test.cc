// Promise 2 where prompts are pruned: what a request gets depends on what is kept of its own prompt, and on nobody else.
#include "engine_sharing_fixture.h"

namespace quire {
namespace {

// All requests in the default format; with others some are enough.
class EnginePruning : public EngineSharing {
 protected:
  EnginePruning() {
    if (GetParam().formats.only() != KvFormat::f16) requests_.resize(50);
  }
};

TEST_P(EnginePruning, AnswersAreTheSameWhateverTheChunksTheMemoryAndTheNeighbours) {
  using Drafts = Setting::Drafts;
  const std::vector<Result> whole = answers({});
  uint32_t pruned = 0;
  const uint32_t some = uint32_t(requests_.size()) * 2 / 5;
  for (size_t i = 0; i < requests_.size(); ++i) {
    const uint32_t prompt = uint32_t(requests_[i].prompt.size());
    if (i % 4 == 0 || prompt < 12) continue;  // and some keep all
    PruningOptions pruning{.share = 0.25 * double(1 + i % 3), .window = 4};
    pruning.policy = kPruningPolicies[i / 2 % std::size(kPruningPolicies)];
    pruning.evaluator = {.layer = first_full_layer(), .heads = {0, 2}};
    if (pruning.policy == PruningPolicy::zip && 2 * prompt + 3 > kContext) continue;
    if (i % 5 == 0) pruning.scored = prompt - 3;
    requests_[i].pruning = pruning;
    ++pruned;
  }
  ASSERT_GT(pruned, some);
  // A prompt that is read again needs as much room in the window layers too.
  const uint32_t pool = model_.spec.layers[0].window() > 0 ? 194 : 134;
  const std::vector<Result>& alone = this->alone();
  EXPECT_NE(alone, whole);
  EXPECT_EQ(answers({}), alone);
  EXPECT_GT(shared_, some);
  EXPECT_GT(pruned_pages_, some);
  const bool may_be_unequal = GetParam().formats.only().has_value();  // heads that need the same room
  EXPECT_EQ(unequal_steps_ > some, may_be_unequal);
  EXPECT_EQ(answers({.sharing = false, .reversed = true}), alone);
  EXPECT_EQ(answers({.chunk = 5, .cancels = true}), alone);
  EXPECT_EQ(answers({.pool_tokens = pool}), alone);
  EXPECT_GT(preemptions_, 0u);
  EXPECT_EQ(unequal_steps_ > some, may_be_unequal);
  EXPECT_EQ(answers({.pool_tokens = pool, .drafts = Drafts::model}), alone);
  EXPECT_EQ(answers({.drafts = Drafts::lookup}), alone);
  EXPECT_EQ(answers({.pool_tokens = pool, .disk_tokens = 4000}), alone);
  EXPECT_GT(loaded_, some / 2);
  EXPECT_EQ(answers({.pool_tokens = pool, .disk_tokens = 4000, .late = true, .pipeline = 2}), alone);
  EXPECT_GT(loaded_, some / 2);
}

INSTANTIATE_TEST_SUITE_P(Models, EnginePruning,
                         testing::Values(SharingCase{"llama3", "llama3"}, SharingCase{"gemma3", "gemma3"},
                                         SharingCase{"llama3_int8", "llama3", exact_kernels, KvFormat::int8},
                                         SharingCase{"gemma3_q4", "gemma3", exact_kernels, KvFormat::q4},
                                         SharingCase{"gemma3_wide", "gemma3", exact_kernels, {}, 16},
                                         SharingCase{"fast_int8", "synth:q8_0", fastest_kernels,
                                                     KvFormat::int8},
                                         SharingCase{"fast_q4", "synth:q4_0", fastest_kernels, KvFormat::q4},
                                         SharingCase{"fast_by_layer", "synth:q8_0", fastest_kernels,
                                                     KvFormats::parse("int8,0:k=f16,v=q4")}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace quire
