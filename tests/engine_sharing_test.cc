// Promise 2 over the whole engine: what a request gets does not depend on who else is there, on what is cached, on how
// much memory there is, or on who guesses.
#include <cerrno>
#include <random>

#include <unistd.h>

#include "base/error.h"
#include "engine_sharing_fixture.h"

namespace quire {
namespace {

TEST_P(EngineSharing, AnswersAreTheSameAloneAndTogetherInAnyOrderWithAnyMemoryAndAnyDrafter) {
  using Drafts = Setting::Drafts;
  EXPECT_EQ(answers({}), alone());
  EXPECT_GT(shared_, 100u);
  EXPECT_EQ(answers({.reversed = true}), alone());
  EXPECT_EQ(answers({.sharing = false}), alone());
  EXPECT_EQ(answers({.chunk = 5, .cancels = true}), alone());
  EXPECT_EQ(answers({.pool_tokens = 130}), alone());
  // Of large pages there are few, and nobody is let in whom they might not do.
  const bool wide = GetParam().window_pages > 0;
  EXPECT_TRUE(preemptions_ > 3 || wide);
  EXPECT_EQ(answers({.drafts = Drafts::lookup}), alone());
  EXPECT_EQ(answers({.pool_tokens = 130, .drafts = Drafts::model}), alone());
  EXPECT_GT(accepted_, 50u);
  EXPECT_EQ(answers({.salts = true}), alone());
  EXPECT_GT(shared_, 50u);
  EXPECT_EQ(answers({.pool_tokens = 130, .drafts = Drafts::model, .salts = true}), alone());
  EXPECT_EQ(answers({.drafts = Drafts::suffix, .salts = true}), alone());
}

TEST_P(EngineSharing, ADeviceThatIsLateAndStepsPlannedAheadChangeNoAnswer) {
  using Drafts = Setting::Drafts;
  EXPECT_EQ(answers({.pipeline = 2}), alone());
  EXPECT_GT(shared_, 100u);
  EXPECT_EQ(answers({.pool_tokens = 130, .pipeline = 2}), alone());
  EXPECT_TRUE(preemptions_ > 3 || GetParam().window_pages > 0);
  EXPECT_EQ(answers({.late = true}), alone());
  EXPECT_EQ(answers({.chunk = 5, .cancels = true, .late = true, .pipeline = 2}), alone());
  EXPECT_EQ(answers({.pool_tokens = 130, .drafts = Drafts::lookup, .late = true, .pipeline = 2}), alone());
  EXPECT_EQ(answers({.pool_tokens = 130, .drafts = Drafts::model, .late = true, .pipeline = 2}), alone());
  EXPECT_GT(accepted_, 0u);
  EXPECT_EQ(answers({.pool_tokens = 130, .disk_tokens = 4000, .late = true, .pipeline = 2}), alone());
  EXPECT_GT(loaded_, 20u);
}

TEST_P(EngineSharing, ADeviceThatWentOnWithAnotherTokenChangesNoAnswer) {
  using Drafts = Setting::Drafts;
  EXPECT_EQ(answers({.pipeline = 2, .amends = true}), alone());
  EXPECT_GT(shared_, 100u);
  EXPECT_EQ(answers({.chunk = 5, .cancels = true, .pipeline = 2, .amends = true}), alone());
  EXPECT_EQ(answers({.pool_tokens = 130, .drafts = Drafts::suffix, .pipeline = 2, .amends = true}), alone());
  EXPECT_EQ(answers({.pool_tokens = 130, .disk_tokens = 4000, .pipeline = 2, .amends = true}), alone());
}

TEST_P(EngineSharing, PagesThatGoToTheHostAndComeBackChangeNoAnswer) {
  using Drafts = Setting::Drafts;
  EXPECT_EQ(answers({.pool_tokens = 130, .host_tokens = 4000}), alone());
  EXPECT_GT(fetched_, 20u);
  EXPECT_GT(host_.kept_pages, 20u);
  EXPECT_EQ(answers({.pool_tokens = 130, .host_tokens = 4000, .late = true, .pipeline = 2}), alone());
  EXPECT_GT(fetched_, 20u);
  EXPECT_EQ(answers({.chunk = 5,
                     .pool_tokens = 110,
                     .reversed = true,
                     .cancels = true,
                     .host_tokens = 600,
                     .salts = true,
                     .late = true,
                     .pipeline = 2}),
            alone());
  EXPECT_GT(fetched_, 5u);
  EXPECT_GT(host_.replaced_pages, 20u);
  EXPECT_EQ(
      answers(
          {.pool_tokens = 130, .drafts = Drafts::model, .host_tokens = 4000, .late = true, .pipeline = 2}),
      alone());
  EXPECT_EQ(answers({.pool_tokens = 130, .host_tokens = 1000, .pipeline = 2, .amends = true}), alone());
  EXPECT_EQ(
      answers({.pool_tokens = 130, .disk_tokens = 4000, .host_tokens = 200, .late = true, .pipeline = 2}),
      alone());
  EXPECT_GT(disk_.written_pages, 20u);
}

TEST_P(EngineSharing, PagesThatGoToTheDiskAndComeBackChangeNoAnswer) {
  using Drafts = Setting::Drafts;
  // Who runs together depends on when the disk answers: only the sums are sure.
  uint64_t loaded = 0, preemptions = 0, replaced = 0;
  for (const Setting& setting :
       {Setting{.pool_tokens = 130, .disk_tokens = 4000},
        Setting{.chunk = 5, .pool_tokens = 110, .reversed = true, .disk_tokens = 4000},
        Setting{.pool_tokens = 130, .cancels = true, .disk_tokens = 300},
        Setting{.pool_tokens = 130, .drafts = Drafts::model, .disk_tokens = 4000}}) {
    EXPECT_EQ(answers(setting), alone());
    loaded += loaded_;
    preemptions += preemptions_;
    replaced += disk_.replaced_pages;
  }
  EXPECT_GT(loaded, 100u);
  EXPECT_GT(preemptions, 0u);
  EXPECT_GT(replaced, 100u);
}

TEST_P(EngineSharing, ADiskThatFailsAndLiesChangesNoAnswer) {
  std::mt19937 random(11);  // of the disk's own thread
  const DiskIo io{.write = [&](int file, const void* data, size_t bytes, off_t at) -> ssize_t {
                    errno = ENOSPC;
                    return random() % 20 == 0 ? -1 : ::pwrite(file, data, bytes, at);
                  },
                  .read = [&](int file, void* data, size_t bytes, off_t at) -> ssize_t {
                    errno = EIO;
                    const uint32_t fate = random() % 20;
                    if (fate == 0) return -1;
                    if (fate == 1) return 0;
                    const ssize_t got = ::pread(file, data, bytes, at);
                    if (fate == 2 && got > 0) static_cast<uint8_t*>(data)[random() % size_t(got)] ^= 0x10;
                    return got;
                  }};
  EXPECT_EQ(answers({.pool_tokens = 130, .disk_tokens = 4000, .disk_io = io}), alone());
  EXPECT_GT(disk_.failed_writes, 5u);
  EXPECT_GT(disk_.failed_reads, 5u);
  EXPECT_GT(loaded_, 50u);
}

TEST_P(EngineSharing, KeepingTheWholePromptChangesNothing) {
  const std::vector<Result> whole = answers({});
  for (Request& request : requests_) request.pruning = PruningOptions{.share = 1};
  if (GetParam().name.starts_with("chosen_")) {  // which an index finds by their place
    EXPECT_THROW(answers({}), Error);
    return;
  }
  EXPECT_EQ(answers({}), whole);
  EXPECT_EQ(pruned_pages_, 0u);
  EXPECT_EQ(unequal_steps_, 0u);
}

TEST_P(EngineSharing, SeveralAnswersToOnePromptAreThoseOfEachChoiceAlone) {
  Request request = requests_[1];
  request.max_tokens = 12;
  while (request.prompt.size() < 30) request.prompt.push_back(TokenId(request.prompt.size()));
  Engine together = make_engine({});
  const std::vector<SequenceId> ids = together.submit_choices(request, 5);
  while (together.step()) {
  }
  // One prompt is computed; the others share its pages and compute its last token again.
  EXPECT_GT(together.kv().events().count(KvEventKind::shared), 0u);
  for (uint32_t choice = 0; choice < 5; ++choice) {
    Engine single = make_engine({.sharing = false});
    request.choice = choice;
    EXPECT_EQ(together.take_answer(ids[choice])->tokens, single.run(request).tokens);
  }
}

TEST_P(EngineSharing, WhatManyHaveInCommonIsComputedOnceEvenIfTheyComeTogether) {
  Engine engine = make_engine({.chunk = 90});
  std::vector<SequenceId> ids;
  for (uint32_t i = 0; i < 6; ++i) {
    Request request = requests_[0];
    request.prompt.clear();
    for (uint32_t p = 0; p < 40; ++p) request.prompt.push_back(p * 3 % 64);
    request.prompt.push_back(i);
    ids.push_back(engine.submit(request));
  }
  while (engine.step()) {
  }
  const uint32_t common = 40 / engine.kv().node_tokens() * engine.kv().node_tokens();
  for (uint32_t i = 0; i < 6; ++i)
    EXPECT_EQ(engine.take_answer(ids[i])->account.cached_tokens, i == 0 ? 0u : common);
}

TEST_P(EngineSharing, NobodyFindsOrWaitsForWhatIsComputedUnderAnotherSalt) {
  Engine engine = make_engine({.chunk = 90});
  std::vector<SequenceId> ids;
  Request request = requests_[0];
  request.prompt.clear();
  for (uint32_t p = 0; p < 41; ++p) request.prompt.push_back(p * 3 % 64);
  request.max_tokens = 8;
  for (uint32_t i = 0; i < 6; ++i) {
    request.salt = {.key = i % 3};
    ids.push_back(engine.submit(request));
  }
  engine.step();
  EXPECT_EQ(engine.scheduler().running().size(), 3u)
      << "one of each salt; its twin waits for what it computes";
  const auto forked = engine.fork(ids[1], 41, requests_[0]);  // which says another salt
  const uint32_t common = 40 / engine.kv().node_tokens() * engine.kv().node_tokens();
  while (engine.step()) {
  }
  for (uint32_t i = 0; i < 6; ++i)
    EXPECT_EQ(engine.take_answer(ids[i])->account.cached_tokens, i < 3 ? 0u : common) << i;
  EXPECT_EQ(engine.take_answer(forked.value())->account.cached_tokens, 40u);
  EXPECT_EQ(engine.lookup({request.prompt, {.key = 2}}).tokens, 40u);
  EXPECT_EQ(engine.lookup({request.prompt, {.key = 3}}).tokens, 0u);
  engine.check_invariants();
}

TEST_P(EngineSharing, AForkGoesOnFromWhereItPartsAsIfItHadBeenAskedForAnew) {
  Engine engine = make_engine({});
  Request request = requests_[1];
  request.max_tokens = 12;
  const SequenceId parent = engine.submit(request);
  while (engine.scheduler().find(parent) == nullptr || engine.scheduler().find(parent)->answer_tokens() < 6)
    engine.step();
  const std::vector<TokenId> tokens = engine.scheduler().find(parent)->tokens;
  const uint32_t at = uint32_t(request.prompt.size()) + 4;
  Request other = request;
  other.sampling.seed = 99;
  other.sampling.temperature = 1;
  const SequenceId child = engine.fork(parent, at, other).value();
  EXPECT_FALSE(engine.fork(parent, 500, other).has_value());
  while (engine.step()) {
  }
  other.prompt.assign(tokens.begin(), tokens.begin() + at);
  EXPECT_EQ(engine.take_answer(child)->tokens, make_engine({.sharing = false}).run(other).tokens);
}

INSTANTIATE_TEST_SUITE_P(
    Models, EngineSharing,
    testing::Values(SharingCase{"llama3", "llama3"}, SharingCase{"gemma3", "gemma3"},
                    SharingCase{"latent_rows", "glm4_moe_lite"}, SharingCase{"chosen_rows", "glm_moe_dsa"},
                    SharingCase{"chosen_rows_of_others", "glm_moe_dsa_shared"},
                    SharingCase{"chosen_blocks", "minimax_m3"},
                    SharingCase{"gemma3_wide", "gemma3", exact_kernels, {}, 16},
                    SharingCase{"split_layers", "gemma3", exact_kernels, {}, 0, {2, 0}},
                    SharingCase{"split_experts", "qwen3_moe", exact_kernels, {}, 0, {2, 2}}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace quire
