// The host tier as the engine uses it, over a device whose copies aside take as long as the test wants: who waits for them, who
// does not, and what is said of it.
#include <gtest/gtest.h>

#include "golden_model.h"
#include "kv/tiers/kv_export.h"
#include "late_backend.h"

namespace quire {
namespace {

// Copies aside happen when somebody waits for them, or when the test lets them.
class SlowCopies : public LateBackend {
 public:
  using LateBackend::LateBackend;
  std::optional<double> aside_seconds(AsideMark mark) override {
    return open ? LateBackend::aside_seconds(mark) : std::nullopt;
  }
  void wait_aside(AsideMark mark) override {
    ++waits;
    open = true;  // they have happened, and that can be seen
    LateBackend::wait_aside(mark);
  }
  Buffer allocate_host(size_t bytes) override {
    host_bytes += bytes;
    return LateBackend::allocate_host(bytes);
  }

  bool open = true;
  uint32_t waits = 0;
  size_t host_bytes = 0;
};

class EngineHost : public testing::TestWithParam<const char*> {
 protected:
  EngineHost() : model_(golden_folder(GetParam()), exact_kernels(), 2) {}

  KvLayout layout() const { return make_kv_layout(kv_shapes(model_.spec, KvFormat::f16), 4); }
  // Room for about two prompts of 60 tokens on the device.
  EngineOptions options(size_t host_pages = 1000) {
    EngineOptions options{.context = 96, .max_sequences = 4, .prefill_chunk = 32};
    options.page_tokens = 4;
    options.kv_bytes = kv_bytes(layout(), pages_for(layout(), 136, 32, 1));
    options.host_bytes = kv_bytes(layout(), std::vector(layout().groups.size(), uint32_t(host_pages)));
    options.host_patience = 1e9;
    options.pipeline = 2;
    options.now = [this] { return Clock::now() + skipped_; };
    return options;
  }
  std::unique_ptr<Engine> make(const EngineOptions& options) {
    EngineModel model = model_.engine_model();
    model.backend = &device_;
    return std::make_unique<Engine>(model, options);
  }
  Request ask(uint32_t which) const {
    Request request;
    for (uint32_t p = 0; p < 60; ++p)
      request.prompt.push_back((which * 31 + p * 7 + p * p) % model_.spec.vocab);
    request.max_tokens = 6;
    request.sampling = {.temperature = 0};
    request.logprobs = true;
    return request;
  }
  void run_others(Engine& engine) {
    for (uint32_t other = 1; other < 6; ++other) engine.run(ask(other));
  }
  // The first request's pages have left the device, and it comes again.
  SequenceId begin_loading(Engine& engine) {
    first_ = engine.run(ask(0));
    run_others(engine);
    EXPECT_LT(engine.lookup(ask(0).prompt).tokens, 20u);
    device_.open = false;
    device_.waits = 0;
    const SequenceId id = engine.submit(ask(0));
    // Something else is there to be computed, so that nobody has to wait.
    beside_ = engine.submit(ask(9));
    engine.step();
    EXPECT_TRUE(engine.scheduler().find(id)->host.loading);
    return id;
  }

  BareModel model_;
  SlowCopies device_{model_.backend};
  Answer first_;
  SequenceId beside_;
  Clock::duration skipped_{};
};

TEST_P(EngineHost, APrefixComesBackAndIsNotComputedAgain) {
  const auto engine = make(options());
  EXPECT_GE(device_.host_bytes, engine->host()->stats().capacity_bytes);
  const Answer first = engine->run(ask(0));
  EXPECT_EQ(first.account.host_tokens, 0u);
  run_others(*engine);
  const uint32_t in_memory = engine->lookup(ask(0).prompt).tokens;
  EXPECT_EQ(engine->kv().lookup_in_host(ask(0).prompt).tokens, 56u);
  const Answer again = engine->run(ask(0));
  EXPECT_EQ(again.tokens, first.tokens);
  EXPECT_EQ(again.logprobs, first.logprobs);
  EXPECT_EQ(again.account.cached_tokens, 56u) << "14 pages; what follows is no full page";
  EXPECT_EQ(again.account.host_tokens, 56u - in_memory);
  EXPECT_EQ(again.account.disk_tokens, 0u);
  EXPECT_GT(again.account.host_ms, 0);
  EXPECT_EQ(engine->kv().stats().held_pages, 0u);
  engine->check_invariants();
}

TEST_P(EngineHost, APrefixComesBackUnderItsSaltAndUnderNoOther) {
  const auto engine = make(options());
  Request salted = ask(0);
  salted.salt = {.key = 5};
  const Answer first = engine->run(salted);
  run_others(*engine);
  const Answer without = engine->run(ask(0));
  EXPECT_EQ(without.tokens, first.tokens);
  EXPECT_EQ(without.account.cached_tokens, 0u);
  run_others(*engine);
  const Answer again = engine->run(salted);
  EXPECT_EQ(again.tokens, first.tokens);
  EXPECT_EQ(again.account.cached_tokens, 56u);
  EXPECT_GT(again.account.host_tokens, 0u);
  engine->check_invariants();
}

TEST_P(EngineHost, OthersGoOnWhileOneWaitsForItsPages) {
  const auto engine = make(options());
  const SequenceId id = begin_loading(*engine);
  std::optional<Answer> beside;
  while (!(beside = engine->take_answer(beside_))) ASSERT_TRUE(engine->step());
  EXPECT_EQ(beside->tokens.size(), 6u);
  EXPECT_EQ(device_.waits, 0u) << "nobody waited for a copy";
  EXPECT_TRUE(engine->scheduler().find(id)->host.loading);
  EXPECT_GT(engine->kv().pages_arriving(), 0u);
  device_.open = true;
  while (engine->step()) {
  }
  const Answer again = engine->take_answer(id).value();
  EXPECT_EQ(again.tokens, first_.tokens);
  EXPECT_EQ(again.logprobs, first_.logprobs);
  EXPECT_GT(again.account.host_tokens, 0u);
  engine->check_invariants();
}

TEST_P(EngineHost, AnEngineThatHasNothingElseToDoWaitsForTheCopy) {
  const auto engine = make(options());
  const SequenceId id = begin_loading(*engine);
  uint32_t steps = 0;
  while (engine->step()) ASSERT_LT(++steps, 100u);
  EXPECT_GT(device_.waits, 0u);
  EXPECT_EQ(engine->take_answer(id)->tokens, first_.tokens);
  engine->check_invariants();
}

TEST_P(EngineHost, SeveralThatWantTheSamePagesBringThemOnce) {
  const auto engine = make(options());
  const uint64_t before = (begin_loading(*engine), engine->host()->stats().loaded_pages);
  std::vector<SequenceId> ids;
  for (int i = 0; i < 3; ++i) ids.push_back(engine->submit(ask(0)));
  engine->step();
  device_.open = true;
  while (engine->step()) {
  }
  for (SequenceId id : ids) EXPECT_EQ(engine->take_answer(id)->tokens, first_.tokens);
  EXPECT_LE(engine->host()->stats().loaded_pages - before, 14u * engine->kv().layout().groups.size());
  engine->check_invariants();
}

TEST_P(EngineHost, OneThatIsCancelledWhileItWaitsLeavesNothingBehind) {
  const auto engine = make(options());
  const SequenceId id = begin_loading(*engine);
  engine->cancel(id);
  engine->cancel(beside_);
  EXPECT_GT(engine->kv().pages_arriving(), 0u);
  while (engine->step()) {
  }
  EXPECT_FALSE(engine->take_answer(id).has_value());
  EXPECT_EQ(engine->kv().stats().held_pages, 0u);
  EXPECT_EQ(engine->lookup(ask(0).prompt).tokens, 56u) << "what was on its way has come";
  EXPECT_EQ(engine->run(ask(0)).tokens, first_.tokens);
  engine->check_invariants();
}

TEST_P(EngineHost, ADeadlineEndsTheWait) {
  const auto engine = make(options());
  first_ = engine->run(ask(0));
  run_others(*engine);
  device_.open = false;
  Request request = ask(0);
  request.deadline = Clock::now() + std::chrono::hours(1);
  const SequenceId id = engine->submit(request);
  engine->submit(ask(9));
  engine->step();
  EXPECT_TRUE(engine->scheduler().find(id)->host.loading);
  skipped_ = std::chrono::hours(2);
  while (engine->step()) {
  }
  EXPECT_EQ(engine->take_answer(id)->finish_reason, FinishReason::deadline);
  EXPECT_EQ(engine->run(ask(0)).tokens, first_.tokens);
  engine->check_invariants();
}

TEST_P(EngineHost, AnEngineMayEndWhileCopiesAreOnTheirWay) {
  auto engine = make(options());
  begin_loading(*engine);
  ASSERT_GT(engine->kv().pages_arriving(), 0u);
  engine.reset();
  EXPECT_GT(device_.waits, 0u) << "its memory is still read";
}

TEST_P(EngineHost, WhatIsComputedFasterThanBroughtIsComputed) {
  EngineOptions impatient = options();
  impatient.host_patience = 1e-9;
  const auto engine = make(impatient);
  first_ = engine->run(ask(0));
  run_others(*engine);
  const Answer again = engine->run(ask(0));
  EXPECT_EQ(again.tokens, first_.tokens);
  EXPECT_EQ(again.account.host_tokens, 0u);
  EXPECT_EQ(engine->host()->stats().loaded_pages, 0u);
  EXPECT_EQ(again.account.miss.why, PrefixMiss::Why::evicted);
  engine->check_invariants();
}

TEST_P(EngineHost, WhatLeavesTheHostGoesToTheDiskAndComesBackFromBoth) {
  EngineOptions both = options(32);
  both.disk_bytes = both.host_bytes * 50;
  both.disk_folder = testing::TempDir();
  both.disk_patience = 1e9;
  const auto engine = make(both);
  std::vector<Answer> first;
  for (uint32_t which = 0; which < 6; ++which) first.push_back(engine->run(ask(which)));
  uint64_t from_host = 0, from_disk = 0;
  for (uint32_t round = 0; round < 3; ++round) {
    for (const uint32_t which : {4u, 3u, 2u, 1u, 0u, 1u, 2u, 3u, 4u, 5u}) {
      // The disk's thread may be behind: what it had no time for is gone.
      while (engine->disk()->stats().queued_bytes > 0) engine->disk()->wait(std::chrono::milliseconds(5));
      const Answer again = engine->run(ask(which));
      EXPECT_EQ(again.tokens, first[which].tokens);
      EXPECT_EQ(again.logprobs, first[which].logprobs);
      from_host += again.account.host_tokens;
      from_disk += again.account.disk_tokens;
      engine->check_invariants();
    }
  }
  EXPECT_GT(from_disk, 100u);
  EXPECT_GT(from_host, 0u);
  EXPECT_GT(engine->disk()->stats().written_pages, 0u);
  EXPECT_GT(engine->host()->stats().replaced_pages, 0u);
}

TEST_P(EngineHost, ASnapshotHasWhatIsInTheHostsMemoryAlsoIfItIsStillOnItsWayThere) {
  const auto engine = make(options());
  std::vector<Answer> first;
  for (uint32_t which = 0; which < 6; ++which) first.push_back(engine->run(ask(which)));
  device_.open = false;
  engine->run(ask(6));
  std::vector<KvNode> nodes;
  {
    KvExport all(engine->kv());
    while (true) {
      const std::vector<KvNode> some = all.take(1000, engine->make_moves());
      if (some.empty()) break;
      nodes.insert(nodes.end(), some.begin(), some.end());
    }
  }
  engine->check_invariants();
  EngineOptions large = options(0);
  large.kv_bytes *= 40;  // also for the pages of windows, which get a part of it
  const auto other = make(large);
  KvImport import(other->kv());
  for (const KvNode& node : nodes) import.add(node, other->make_moves());
  EXPECT_EQ(import.commit().nodes_left_out, 0u);
  for (uint32_t which = 0; which < 6; ++which) {
    EXPECT_GE(other->lookup(ask(which).prompt).tokens, 56u) << which;
    const Answer again = other->run(ask(which));
    EXPECT_EQ(again.tokens, first[which].tokens);
    EXPECT_EQ(again.logprobs, first[which].logprobs);
  }
  other->check_invariants();
}

TEST_P(EngineHost, PagesAreCopiedBesideTheStepsAndNotBeforeThem) {
  EngineOptions roomy = options();
  roomy.kv_bytes *= 3;
  const auto engine = make(roomy);
  for (uint32_t which = 0; which < 12; ++which) engine->run(ask(which));
  const HostTier::Stats stats = engine->host()->stats();
  EXPECT_GT(stats.stored_pages, 50u);
  EXPECT_GT(device_.asides_asked(), 5u);
  EXPECT_GT(stats.kept_pages * 2, stats.stored_pages) << "most were there when they had to go";
  engine->check_invariants();
}

// Several at once, again and again, in a pool that holds two of them.
std::vector<std::pair<std::vector<TokenId>, std::vector<float>>> answers_of(BareModel& model,
                                                                            size_t host_pages,
                                                                            uint64_t& fetched) {
  EngineOptions options{.context = 96, .max_sequences = 3, .prefill_chunk = 32};
  options.page_tokens = 4;
  const KvLayout layout = make_kv_layout(kv_shapes(model.spec, options.kv_formats), 4);
  options.kv_bytes = kv_bytes(layout, pages_for(layout, 136, 32, 1));
  options.host_bytes = kv_bytes(layout, std::vector(layout.groups.size(), uint32_t(host_pages)));
  options.host_patience = 1e9;
  options.pipeline = model.backend.traits().pipeline;
  Engine engine(model.engine_model(), options);
  std::vector<SequenceId> ids;
  for (uint32_t i = 0; i < 60; ++i) {
    Request request;
    for (uint32_t p = 0; p < 60; ++p)
      request.prompt.push_back((i % 7 * 31 + p * 7 + p * p) % model.spec.vocab);
    request.max_tokens = 4 + i % 5;
    request.sampling = {.temperature = i % 2 == 0 ? 0.0f : 1.0f, .seed = i};
    request.logprobs = true;
    ids.push_back(engine.submit(request));
  }
  while (engine.step()) {
  }
  engine.check_invariants();
  fetched = engine.kv().events().count(KvEventKind::fetched);
  std::vector<std::pair<std::vector<TokenId>, std::vector<float>>> all;
  for (SequenceId id : ids) {
    const Answer answer = engine.take_answer(id).value();
    all.emplace_back(answer.tokens, answer.logprobs);
  }
  return all;
}

TEST(EngineHostOnAGpu, AnswersAreTheSameWithItAndWithoutIt) {
  if (open_gpu() == nullptr) GTEST_SKIP() << "this machine has no GPU";
  for (const char* name : {"llama3", "gemma3"}) {
    BareModel model(golden_folder(name), open_gpu());
    uint64_t fetched = 0;
    const auto without = answers_of(model, 0, fetched);
    for (const size_t host_pages : {size_t(1000), size_t(40)}) {
      EXPECT_EQ(answers_of(model, host_pages, fetched), without) << name;
      // Prompts that come round in turn may find nothing where there is not room for all of them.
      EXPECT_TRUE(fetched > 0 || host_pages < 1000) << name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, EngineHost,
                         testing::Values("llama3", "gemma3", "deepseek_v3", "deepseek_v32"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace quire
