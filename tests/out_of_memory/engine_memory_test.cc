// Every allocation of a request, a step, a snapshot fails in turn: what it served ends, and nothing else is harmed.
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include <gtest/gtest.h>

#include "base/error.h"
#include "engine/drafts/suffix_drafter.h"
#include "engine/engine_loop.h"
#include "failing_allocator.h"
#include "golden_model.h"
#include "kv/tiers/kv_snapshot.h"
#include "late_backend.h"

namespace quire {
namespace {

// The n-th allocation fails, of this thread and of others that take part.
class FailingAllocation {
 public:
  explicit FailingAllocation(uint64_t n) {
    failing_allocator::take_part();
    failing_allocator::fail_at(n);
  }
  ~FailingAllocation() {
    failing_allocator::fail_at(0);
    failing_allocator::stand_aside();
  }
  FailingAllocation(const FailingAllocation&) = delete;
  FailingAllocation& operator=(const FailingAllocation&) = delete;

  bool happened() const { return failing_allocator::has_failed(); }
};

// Pages of the tiers behind memory; and whether a device does all late.
struct Tiers {
  size_t disk = 0, host = 0;
  bool late = false;
};

class EngineWithoutMemory : public testing::Test {
 protected:
  static constexpr uint64_t kMost = 100'000;  // a guard: no request here allocates so often

  std::unique_ptr<Engine> engine(const Tiers& tiers = {}) {
    EngineOptions options{.context = 64, .max_sequences = 3, .prefill_chunk = 8, .page_tokens = 8};
    options.kv_bytes = 10 * page_bytes();
    options.disk_bytes = tiers.disk * page_bytes();
    options.disk_folder = testing::TempDir();
    options.host_bytes = tiers.host * page_bytes();
    options.host_patience = 1e9;
    options.pipeline = tiers.late ? 2 : 1;
    EngineModel model = model_.engine_model();
    if (tiers.late) model.backend = &late_;
    return std::make_unique<Engine>(model, options, std::make_unique<SuffixDrafter>());
  }
  size_t page_bytes() {
    const KvLayout layout = make_kv_layout(kv_shapes(model_.spec, KvFormats()), 8);
    size_t bytes = 0;
    for (const KvGroupLayout& group : layout.groups) bytes += group.page_bytes;
    return bytes;
  }
  Request request(uint32_t salt, uint32_t prompt_tokens = 11, uint32_t max_tokens = 4) const {
    Request request;
    for (uint32_t i = 0; i < prompt_tokens; ++i)
      request.prompt.push_back((salt * 31 + i * (i < 8 ? 5 : 5 + salt)) % model_.spec.vocab);
    request.sampling.temperature = 0;
    request.max_tokens = max_tokens;
    return request;
  }
  // Three at once, which share a page, evict others and are guessed for.
  void serve(Engine& engine) const {
    for (uint32_t salt : {1u, 2u, 3u}) engine.submit(request(salt, 12 + 9 * salt));
    engine.submit_choices(request(1, 21), 2);
    for (int steps = 0; engine.step(); ++steps) ASSERT_LT(steps, 1000);
  }

  BareModel model_{golden_folder("mistral"), exact_kernels(), 2};
  LateBackend late_{model_.backend};
};

TEST_F(EngineWithoutMemory, AStepThatFailsEndsWhatItServedAndTheNextRequestIsAnsweredRight) {
  const std::vector<TokenId> expected = engine()->run(request(4)).tokens;
  for (const Tiers& tiers : {Tiers{}, Tiers{.disk = 4}, Tiers{.host = 6}, Tiers{.disk = 8, .host = 3},
                             Tiers{.disk = 8, .host = 4, .late = true}}) {
    const auto tried = engine(tiers);
    uint64_t failures = 0;
    for (uint64_t n = 1; n < kMost; ++n) {
      bool failed = false, threw = false;
      {
        const FailingAllocation failing(n);
        try {
          serve(*tried);
        } catch (const std::bad_alloc&) {
          threw = true;
        }
        failed = failing.happened();
      }
      failures += threw ? 1 : 0;
      tried->check_invariants();
      while (tried->step()) {  // those that waited go on
      }
      tried->take_answers();
      tried->check_invariants();
      ASSERT_EQ(tried->kv().stats().held_pages, 0u) << "after allocation " << n;
      if (n % 16 == 1) {
        ASSERT_EQ(tried->run(request(4)).tokens, expected) << "after allocation " << n;
      }
      if (!failed) break;
    }
    EXPECT_GT(failures, 100u);  // it was not the wrong thing that was tried
  }
}

TEST_F(EngineWithoutMemory, EverybodyIsToldAndTheLoopGoesOn) {
  const std::vector<TokenId> expected = engine()->run(request(4)).tokens;
  std::atomic<uint32_t> told = 0, asked = 0, answered = 0;
  EngineLoop loop(engine());
  loop.post([](Engine&) { failing_allocator::take_part(); });
  const auto done = [&](uint32_t, const Answer* answer, const std::string& refused) {
    std::string words = refused + "more than fits into a string without memory";  // as those who listen do
    if (answer != nullptr && answer->finish_reason == FinishReason::length) ++answered;
    ++told;
  };
  for (uint64_t n = 1; n < kMost; n += n < 400 ? 1 : 13) {
    bool failed = false;
    {
      const FailingAllocation failing(n);
      for (uint32_t salt : {1u, 2u}) {
        try {
          Request ask = request(salt, 12 + 9 * salt);
          loop.start([ask](Engine& engine) { return std::vector{engine.submit(ask)}; }, done);
          ++asked;
        } catch (const std::bad_alloc&) {  // that is the caller's
        }
      }
      while (told < asked) std::this_thread::yield();
      failed = failing.happened();
    }
    const auto look = [](Engine& engine) {
      engine.check_invariants();
      return engine.kv().stats().held_pages;
    };
    ASSERT_EQ(loop.ask(look).get(), 0u) << "after allocation " << n;
    if (!failed) break;
  }
  EXPECT_EQ(told, asked);
  EXPECT_GT(answered, 0u);
  std::promise<std::vector<TokenId>> right;
  loop.submit(request(4), [&](const Answer* answer, const std::string&) { right.set_value(answer->tokens); });
  EXPECT_EQ(right.get_future().get(), expected);
}

TEST_F(EngineWithoutMemory, ASnapshotThatFailsLeavesTheCacheAsItWasOrEmpty) {
  // (What the head of a snapshot is made of is JSON, whose trees take memory to be destroyed: see memory_reserve.h.)
  const std::string path = testing::TempDir() + "without_memory.kv";
  const KvIdentity identity{.model_name = "m", .model = "m", .positions = "p", .kernels = "exact"};
  const auto from = engine();
  const std::vector<TokenId> expected = from->run(request(4, 30)).tokens;
  for (uint64_t n = 1; n < kMost; ++n) {
    SnapshotWriter writer(std::make_unique<ReplacingFile>(path), identity, from->kv().layout());
    bool failed = false;
    {
      const FailingAllocation failing(n);
      try {
        KvExport all(from->kv());
        for (auto nodes = all.take(1000, from->make_moves()); !nodes.empty();
             nodes = all.take(1000, from->make_moves())) {
          for (const KvNode& node : nodes) writer.add(node);
        }
        writer.finish();
      } catch (const std::bad_alloc&) {
      }
      failed = failing.happened();
    }
    from->check_invariants();
    if (!failed) break;
  }
  EXPECT_EQ(from->lookup(request(4, 30).prompt).tokens, 29u);
  const auto to = engine();
  for (uint64_t n = 1; n < kMost; ++n) {
    std::ifstream file(path, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    const auto read = [&](uint64_t offset, std::span<std::byte> into) {
      std::memcpy(into.data(), bytes.data() + offset, into.size());
    };
    SnapshotReader reader({path, bytes.size(), read}, identity, to->kv().layout());
    bool failed = false;
    {
      const FailingAllocation failing(n);
      try {
        restore_nodes(to->kv(), to->make_moves(), reader);
      } catch (const std::bad_alloc&) {
      }
      failed = failing.happened();
    }
    to->check_invariants();
    if (!failed) break;
    EXPECT_EQ(to->kv().stats().cached_pages, 0u);
  }
  EXPECT_EQ(to->lookup(request(4, 30).prompt).tokens, 29u);
  EXPECT_EQ(to->run(request(4, 30)).tokens, expected);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace quire
