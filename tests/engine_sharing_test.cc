// Promise 2 over the whole engine: what a request gets does not depend on who else is there, on what is cached, on how
// much memory there is, or on who guesses.
#include <cerrno>
#include <random>

#include <gtest/gtest.h>
#include <unistd.h>

#include "backend/cpu/kernel_choice.h"
#include "engine/model_drafter.h"
#include "late_backend.h"
#include "synth_file.h"

namespace quire {
namespace {

constexpr uint32_t kRequests = 200, kContext = 96;

using Result = std::pair<std::vector<TokenId>, std::vector<float>>;  // tokens and log-probabilities

std::vector<Request> mixed_requests(uint32_t vocab) {
  std::mt19937 random(3);
  std::vector<Request> requests;
  for (uint32_t i = 0; i < kRequests; ++i) {
    Request request;
    const uint32_t family = random() % 5, length = 1 + random() % 60;
    for (uint32_t p = 0; p < length; ++p) request.prompt.push_back((family * 31 + p * 7 + p * p) % vocab);
    if (random() % 3 == 0) request.prompt[random() % length] = random() % vocab;
    request.max_tokens = 1 + random() % 30;
    request.sampling = {.temperature = i % 2 == 0 ? 0.0f : 1.0f,
                        .top_k = i % 3 == 0 ? 20u : 0u,
                        .top_p = i % 5 == 0 ? 0.9f : 1.0f,
                        .repetition_penalty = i % 7 == 0 ? 1.3f : 1.0f,
                        .presence_penalty = i % 11 == 0 ? 0.5f : 0.0f,
                        .seed = i};
    request.logprobs = true;
    request.priority = i % 13 == 0 ? 1 : 0;
    request.client = i % 2 == 0 ? "even" : "odd";
    requests.push_back(std::move(request));
  }
  return requests;
}

struct Setting {
  uint32_t sequences = 16, chunk = 24;
  bool sharing = true;
  uint32_t pool_tokens = 0;  // 0: room for all
  bool reversed = false, cancels = false;
  enum class Drafts { none, lookup, model } drafts = Drafts::none;
  uint32_t disk_tokens = 0;  // 0: no disk
  DiskIo disk_io = {};
  uint32_t host_tokens = 0;  // 0: no host tier
  bool salts = false;        // a few, by request
  bool late = false;         // what the backend is asked for happens when somebody waits for it
  uint32_t pipeline = 1;
  bool amends = false;  // and draws are settled after the next step has begun
};

struct Case {
  std::string name;
  std::string model;  // a golden's name, or synth:TYPE
  CpuKernels (*kernels)() = exact_kernels;
  KvFormats formats = {};
  uint32_t window_pages = 0;  // tokens of a page of layers with a window, where it is another size
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}

CpuKernels fastest_kernels() {
  return kernels_named("auto");
}

class EngineSharing : public testing::TestWithParam<Case> {
 protected:
  EngineSharing()
      : model_(model_path(GetParam().model), GetParam().kernels(), 2),
        requests_(mixed_requests(model_.spec.vocab)) {
    set_window_pages(model_.spec, GetParam().window_pages);
  }

  Engine make_engine(const Setting& setting) {
    EngineOptions options{
        .context = kContext, .max_sequences = setting.sequences, .prefill_chunk = setting.chunk};
    options.page_tokens = 4;
    options.sharing = setting.sharing;
    options.kv_formats = GetParam().formats;
    options.pipeline = setting.pipeline;
    const KvLayout layout = make_kv_layout(kv_shapes(model_.spec, options.kv_formats), 4);
    if (setting.pool_tokens > 0)
      options.kv_bytes = kv_bytes(layout, pages_for(layout, setting.pool_tokens, setting.chunk, 1));
    if (setting.disk_tokens > 0) {
      options.disk_bytes = kv_bytes(layout, std::vector(layout.groups.size(), setting.disk_tokens / 4));
      options.disk_folder = testing::TempDir();
      options.disk_patience = 1e9;  // whatever it takes: all that can come back does
      options.disk_io = setting.disk_io;
    }
    if (setting.host_tokens > 0) {
      options.host_bytes = kv_bytes(layout, std::vector(layout.groups.size(), setting.host_tokens / 4));
      options.host_patience = 1e9;
    }
    std::unique_ptr<Drafter> drafter;
    if (setting.drafts == Setting::Drafts::lookup) drafter = std::make_unique<LookupDrafter>();
    // The model as its own draft: always right when greedy, and it goes through every step of drafting.
    if (setting.drafts == Setting::Drafts::model)
      drafter = std::make_unique<ModelDrafter>(engine_model(setting), model_.spec, options);
    EngineModel model = engine_model(setting);
    model.repeat_request = {5, 6, 7};
    return Engine(model, options, std::move(drafter));
  }

  EngineModel engine_model(const Setting& setting) {
    EngineModel model = model_.engine_model();
    if (setting.late) model.backend = &late_;
    if (setting.amends) model.backend = &amending_;
    return model;
  }

  std::vector<Result> answers(const Setting& setting) {
    Engine engine = make_engine(setting);
    std::vector<SequenceId> ids(requests_.size());
    for (size_t i = 0; i < requests_.size(); ++i) {
      const size_t which = setting.reversed ? requests_.size() - 1 - i : i;
      Request request = requests_[which];
      if (setting.salts) request.salt = {.key = which % 3, .text = which % 5 == 0 ? which : 0};
      ids[which] = engine.submit(std::move(request));
      if (setting.cancels && i % 3 == 0) {
        const SequenceId victim = engine.submit(requests_[(i * 7) % requests_.size()]);
        engine.step();
        engine.step();
        engine.cancel(victim);
      }
    }
    unequal_steps_ = 0;
    while (engine.step()) {
      for (const auto& sequence : engine.scheduler().running()) {
        if (has_unequal_heads(engine.kv(), sequence->table)) ++unequal_steps_;
      }
    }
    engine.check_invariants();
    EXPECT_EQ(engine.kv().stats().held_pages, 0u);
    preemptions_ = engine.scheduler().preemptions();
    shared_ = engine.kv().events().count(KvEventKind::shared);
    pruned_pages_ = engine.kv().events().count(KvEventKind::pruned);
    loaded_ = engine.kv().events().count(KvEventKind::loaded);
    fetched_ = engine.kv().events().count(KvEventKind::fetched);
    if (engine.host() != nullptr) host_ = engine.host()->stats();
    if (engine.disk() != nullptr) disk_ = engine.disk()->stats();
    accepted_ = 0;
    std::vector<Result> results;
    for (SequenceId id : ids) {
      const Answer answer = engine.take_answer(id).value();
      accepted_ += answer.account.accepted;
      results.emplace_back(answer.tokens, answer.logprobs);
    }
    return results;
  }

  // Some head of it has more rows than another.
  static bool has_unequal_heads(const KvCache& kv, const PageTable& table) {
    const PageTable* tables[] = {&table};
    return std::ranges::any_of(kv.flatten(tables).groups,
                               [](const KvTables::Group& group) { return !group.heads_begin.empty(); });
  }

  const std::vector<Result>& alone() {
    if (!alone_.empty()) return alone_;
    for (const Request& request : requests_) {
      Engine engine = make_engine({.sequences = 1, .chunk = kContext, .sharing = false});
      const Answer answer = engine.run(request);
      alone_.emplace_back(answer.tokens, answer.logprobs);
    }
    return alone_;
  }

  uint32_t first_full_layer() const {
    const auto found = std::ranges::find(model_.spec.layers, 0u, &LayerSpec::window);
    return uint32_t(found - model_.spec.layers.begin());
  }

  BareModel model_;
  LateBackend late_{model_.backend}, amending_{model_.backend, 3};
  std::vector<Request> requests_;
  std::vector<Result> alone_;
  uint64_t preemptions_ = 0, shared_ = 0, pruned_pages_ = 0, accepted_ = 0, loaded_ = 0, fetched_ = 0,
           unequal_steps_ = 0;
  HostTier::Stats host_;
  DiskTier::Stats disk_;
};

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
}

TEST_P(EngineSharing, ADeviceThatIsLateAndStepsPlannedAheadChangeNoAnswer) {
  using Drafts = Setting::Drafts;
  EXPECT_EQ(answers({.pipeline = 2}), alone());
  EXPECT_GT(shared_, 100u);
  EXPECT_EQ(answers({.pool_tokens = 130, .pipeline = 2}), alone());
  EXPECT_GT(preemptions_, GetParam().window_pages > 0 ? 0u : 3u);
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
  EXPECT_EQ(answers({.pool_tokens = 130, .drafts = Drafts::lookup, .pipeline = 2, .amends = true}), alone());
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
    for (uint32_t p = 0; p < 40; ++p) request.prompt.push_back(p * 3 % 100);
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
  for (uint32_t p = 0; p < 41; ++p) request.prompt.push_back(p * 3 % 100);
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

INSTANTIATE_TEST_SUITE_P(Models, EngineSharing,
                         testing::Values(Case{"llama3", "llama3"}, Case{"gemma3", "gemma3"},
                                         Case{"gemma3_wide", "gemma3", exact_kernels, {}, 16}),
                         [](const auto& info) { return info.param.name; });

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
  EXPECT_EQ(answers({.pool_tokens = pool, .host_tokens = 4000, .late = true, .pipeline = 2}), alone);
  EXPECT_GT(fetched_, some / 2);
}

INSTANTIATE_TEST_SUITE_P(Models, EnginePruning,
                         testing::Values(Case{"llama3", "llama3"}, Case{"gemma3", "gemma3"},
                                         Case{"llama3_int8", "llama3", exact_kernels, KvFormat::int8},
                                         Case{"gemma3_q4", "gemma3", exact_kernels, KvFormat::q4},
                                         Case{"gemma3_wide", "gemma3", exact_kernels, {}, 16},
                                         Case{"fast_int8", "synth:q8_0", fastest_kernels, KvFormat::int8},
                                         Case{"fast_q4", "synth:q4_0", fastest_kernels, KvFormat::q4},
                                         Case{"fast_by_layer", "synth:q8_0", fastest_kernels,
                                              KvFormats::parse("int8,0:k=f16,v=q4")}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace quire
