// The disk tier as the engine uses it: who waits for it, who does not, and what is said of it.
#include <condition_variable>
#include <future>
#include <mutex>

#include <gtest/gtest.h>
#include <unistd.h>

#include "golden_model.h"

namespace quire {
namespace {

// Reads wait until the test lets them through.
class SlowDisk {
 public:
  DiskIo io() {
    return {.write = {}, .read = [this](int file, void* data, size_t bytes, off_t at) {
              std::unique_lock lock(mutex_);
              ++reads_;
              ++reading_;
              changed_.notify_all();
              changed_.wait(lock, [&] { return open_; });
              const ssize_t got = ::pread(file, data, bytes, at);
              --reading_;
              return got;
            }};
  }
  ~SlowDisk() { open(); }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void wait_for_a_read() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return reads_ > 0; });
  }
  uint32_t reading() {
    const std::lock_guard lock(mutex_);
    return reading_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
  uint32_t reads_ = 0, reading_ = 0;
};

class EngineDisk : public testing::TestWithParam<const char*> {
 protected:
  EngineDisk() : model_(golden_folder(GetParam()), exact_kernels(), 2) {}

  // Room for about two prompts of 60 tokens.
  std::unique_ptr<Engine> make(double patience, DiskIo io = {}, size_t disk_pages = 1000) {
    EngineOptions options{.context = 96, .max_sequences = 4, .prefill_chunk = 32};
    options.page_tokens = 4;
    const KvLayout layout = make_kv_layout(kv_shapes(model_.spec, KvFormat::f16), 4);
    options.kv_bytes = kv_bytes(layout, pages_for(layout, 136, 32, 1));
    options.disk_bytes = kv_bytes(layout, std::vector(layout.groups.size(), uint32_t(disk_pages)));
    options.disk_folder = testing::TempDir();
    options.disk_patience = patience;
    options.disk_io = std::move(io);
    options.now = [this] { return Clock::now() + skipped_; };
    return std::make_unique<Engine>(model_.engine_model(), options);
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
  // Its first request's pages have gone to the disk, and it comes again.
  SequenceId begin_loading(Engine& engine) {
    first_ = engine.run(ask(0));
    run_others(engine);
    EXPECT_LT(engine.lookup(ask(0).prompt).tokens, 20u);
    const SequenceId id = engine.submit(ask(0));
    engine.step();
    EXPECT_TRUE(engine.scheduler().find(id)->disk.loading);
    return id;
  }

  BareModel model_;
  Answer first_;
  Clock::duration skipped_{};
};

TEST_P(EngineDisk, APrefixComesBackAndIsNotComputedAgain) {
  const auto engine = make(1e9);
  const Answer first = engine->run(ask(0));
  EXPECT_EQ(first.account.disk_tokens, 0u);
  run_others(*engine);
  const uint32_t in_memory = engine->lookup(ask(0).prompt).tokens;
  const Answer again = engine->run(ask(0));
  EXPECT_EQ(again.tokens, first.tokens);
  EXPECT_EQ(again.logprobs, first.logprobs);
  EXPECT_EQ(again.account.cached_tokens, 56u) << "14 pages; what follows is no full page";
  EXPECT_EQ(again.account.disk_tokens, 56u - in_memory);
  EXPECT_GT(again.account.disk_ms, 0);
  EXPECT_EQ(engine->kv().stats().held_pages, 0u);
  engine->check_invariants();
}

TEST_P(EngineDisk, APrefixComesBackUnderItsSaltAndUnderNoOther) {
  const auto engine = make(1e9);
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
  EXPECT_GT(again.account.disk_tokens, 0u);
  engine->check_invariants();
}

TEST_P(EngineDisk, OthersGoOnWhileOneWaitsForTheDisk) {
  SlowDisk disk;
  const auto engine = make(1e9, disk.io());
  const SequenceId id = begin_loading(*engine);
  const Answer other = engine->run(ask(8));
  EXPECT_EQ(other.tokens.size(), 6u);
  EXPECT_TRUE(engine->scheduler().find(id)->disk.loading);
  EXPECT_EQ(engine->kv().stats().held_pages, 0u) << "who waits holds nothing";
  disk.open();
  while (engine->step()) {
  }
  const Answer again = engine->take_answer(id).value();
  EXPECT_EQ(again.tokens, first_.tokens);
  EXPECT_GT(again.account.disk_tokens, 0u);
  engine->check_invariants();
}

TEST_P(EngineDisk, AnEngineThatHasNothingElseToDoSleepsUntilTheDiskAnswers) {
  SlowDisk disk;
  const auto engine = make(1e9, disk.io());
  const SequenceId id = begin_loading(*engine);
  disk.wait_for_a_read();
  constexpr int kSteps = 20;
  const Clock::time_point begin = Clock::now();
  for (int i = 0; i < kSteps; ++i) ASSERT_TRUE(engine->step());
  // A machine that is busy makes it longer, never shorter.
  EXPECT_GE(milliseconds_between(begin, Clock::now()), kSteps)
      << "one that does not sleep takes microseconds";
  EXPECT_TRUE(engine->scheduler().find(id)->disk.loading);
  disk.open();
  while (engine->step()) {
  }
  EXPECT_EQ(engine->take_answer(id)->tokens, first_.tokens);
}

TEST_P(EngineDisk, SeveralThatWantTheSamePagesReadThemOnce) {
  SlowDisk disk;
  const auto engine = make(1e9, disk.io());
  std::vector<SequenceId> ids = {begin_loading(*engine)};
  for (int i = 0; i < 3; ++i) ids.push_back(engine->submit(ask(0)));
  engine->step();
  disk.open();
  while (engine->step()) {
  }
  for (SequenceId id : ids) EXPECT_EQ(engine->take_answer(id)->tokens, first_.tokens);
  EXPECT_LE(engine->disk()->stats().read_pages, 14u * engine->kv().layout().groups.size());
  engine->check_invariants();
}

TEST_P(EngineDisk, OneThatIsCancelledWhileItWaitsLeavesNothingBehind) {
  SlowDisk disk;
  const auto engine = make(1e9, disk.io());
  const SequenceId id = begin_loading(*engine);
  const SequenceId second = engine->submit(ask(1));
  engine->step();
  disk.wait_for_a_read();
  engine->cancel(id);
  disk.open();
  while (engine->step()) {
  }
  EXPECT_FALSE(engine->take_answer(id).has_value());
  EXPECT_EQ(engine->take_answer(second)->tokens.size(), 6u);
  EXPECT_EQ(engine->kv().stats().held_pages, 0u);
  EXPECT_EQ(engine->run(ask(0)).tokens, first_.tokens);
  engine->check_invariants();
}

TEST_P(EngineDisk, ADeadlineEndsTheWait) {
  SlowDisk disk;
  const auto engine = make(1e9, disk.io());
  first_ = engine->run(ask(0));
  run_others(*engine);
  Request request = ask(0);
  request.deadline = Clock::now() + std::chrono::hours(1);
  const SequenceId id = engine->submit(request);
  engine->step();
  EXPECT_TRUE(engine->scheduler().find(id)->disk.loading);
  skipped_ = std::chrono::hours(2);
  while (engine->step()) {
  }
  EXPECT_EQ(engine->take_answer(id)->finish_reason, FinishReason::deadline);
  EXPECT_TRUE(engine->scheduler().idle());
  disk.open();
  EXPECT_EQ(engine->run(ask(0)).tokens, first_.tokens);
  engine->check_invariants();
}

TEST_P(EngineDisk, AnEngineThatEndsWhileTheDiskReadsWaitsForThatRead) {
  SlowDisk disk;
  auto engine = make(1e9, disk.io());
  begin_loading(*engine);
  disk.wait_for_a_read();
  const std::future<void> ended = std::async(std::launch::async, [&] { engine.reset(); });
  EXPECT_EQ(ended.wait_for(std::chrono::milliseconds(200)), std::future_status::timeout)
      << "it ended although the disk still writes into its memory";
  disk.open();
  ended.wait();
  EXPECT_EQ(disk.reading(), 0u);
}

TEST_P(EngineDisk, WhatIsComputedFasterThanReadIsComputed) {
  uint32_t reads = 0;
  const DiskIo io{.write = {}, .read = [&](int file, void* data, size_t bytes, off_t at) {
                    ++reads;
                    ::usleep(20000);  // a page of 4 tokens: far longer than they take to compute
                    return ::pread(file, data, bytes, at);
                  }};
  const auto engine = make(1, io);
  first_ = engine->run(ask(0));
  run_others(*engine);
  EXPECT_EQ(engine->run(ask(0)).tokens, first_.tokens);  // it may be tried once
  const uint32_t tried = reads;
  run_others(*engine);
  const Answer again = engine->run(ask(0));
  EXPECT_EQ(reads, tried);
  EXPECT_EQ(again.tokens, first_.tokens);
  EXPECT_EQ(again.account.disk_tokens, 0u);
  EXPECT_EQ(again.account.miss.why, PrefixMiss::Why::evicted);
  engine->check_invariants();
}

INSTANTIATE_TEST_SUITE_P(Models, EngineDisk,
                         testing::Values("llama3", "gemma3", "deepseek_v3", "deepseek_v32", "minimax_m3"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace quire
