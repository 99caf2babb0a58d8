// Promise 2 where prompts are pruned: what a request gets depends on what is kept of its own prompt, and on nobody else.
#include <chrono>

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
    pruning.policy =
        i % 8 == 7 ? PruningPolicy::evaluator : kPruningPolicies[i / 2 % 5];  // most want the room
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
  // Heads that need the same room, all of them on one side.
  const bool may_be_unequal =
      GetParam().formats.only().has_value() && GetParam().placement.device_layers == Placement::kAll;
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
  EXPECT_EQ(answers({.pool_tokens = pool, .host_tokens = 4000, .late = true, .pipeline = 2}), alone);
  EXPECT_GT(fetched_, some / 2);
}

INSTANTIATE_TEST_SUITE_P(Models, EnginePruning,
                         testing::Values(SharingCase{"llama3", "llama3"}, SharingCase{"gemma3", "gemma3"},
                                         SharingCase{"latent_rows", "glm4_moe_lite"},
                                         SharingCase{"llama3_int8", "llama3", exact_kernels, KvFormat::int8},
                                         SharingCase{"gemma3_q4", "gemma3", exact_kernels, KvFormat::q4},
                                         SharingCase{"gemma3_wide", "gemma3", exact_kernels, {}, 16},
                                         SharingCase{"fast_int8", "synth:q8_0", fastest_kernels,
                                                     KvFormat::int8},
                                         SharingCase{"fast_q4", "synth:q4_0", fastest_kernels, KvFormat::q4},
                                         SharingCase{"fast_by_layer", "synth:q8_0", fastest_kernels,
                                                     KvFormats::parse("int8,0:k=f16,v=q4")},
                                         SharingCase{"split_layers", "llama3", exact_kernels, {}, 0, {1, 0}}),
                         [](const auto& info) { return info.param.name; });

// Each look at the clock is a millisecond after the one before.
class PruningAccount : public testing::TestWithParam<PruningPolicy> {
 protected:
  PruningAccount() {
    options_.page_tokens = 4;
    options_.now = [this] { return clock_ += std::chrono::milliseconds(1); };
  }
  RequestAccount account(double share) {
    Engine engine(model_.engine_model(), options_);
    Request request;
    for (uint32_t i = 0; i < kPrompt; ++i) request.prompt.push_back(1 + i);
    request.max_tokens = 4;
    request.pruning = PruningOptions{.policy = GetParam(), .share = share, .window = 4};
    request.pruning->evaluator = {.layer = 0, .heads = {0}};
    const Answer answer = engine.run(request);
    EXPECT_GT(answer.timings.ttft_ms, answer.account.choosing_ms);
    return answer.account;
  }

  static constexpr uint32_t kPrompt = 40;
  BareModel model_{golden_folder("llama3"), exact_kernels(), 1};
  EngineOptions options_{.context = 96, .max_sequences = 2, .prefill_chunk = 16};
  Clock::time_point clock_{};
};

TEST_P(PruningAccount, HasNoChunkWithoutTokensAndSaysWhatChoosingTook) {
  const RequestAccount pruned = account(0.5);
  EXPECT_GT(pruned.pruned_tokens, 0u);
  uint32_t computed = 0;
  for (const RequestAccount::Chunk& chunk : pruned.prefill) {
    EXPECT_GT(chunk.tokens, 0u);
    EXPECT_GT(chunk.took_ms, 0);
    computed += chunk.tokens;
  }
  const bool computes_prompt_once =
      GetParam() != PruningPolicy::zip && GetParam() != PruningPolicy::evaluator_prompt;
  EXPECT_EQ(computed == kPrompt, computes_prompt_once) << computed;
  // Of all policies one asks the rows themselves, and nothing is computed for it.
  EXPECT_EQ(pruned.choosing_ms > 0, GetParam() == PruningPolicy::expected);
  EXPECT_EQ(account(1).choosing_ms, 0);
}

INSTANTIATE_TEST_SUITE_P(Policies, PruningAccount, testing::ValuesIn(kPruningPolicies),
                         [](const auto& info) { return parameter_name(name(info.param)); });

}  // namespace
}  // namespace quire
