// What the engine's thread says of itself is plain data: to be looked at costs it a few vectors, whatever there is to see.
// JSON, or a string for each page, would be an allocation for each of them.
#include <gtest/gtest.h>

#include "failing_allocator.h"
#include "fake_backend.h"
#include "golden_model.h"
#include "server/live_report.h"

namespace quire {
namespace {

class LookedAt : public testing::Test {
 protected:
  static constexpr uint32_t kPageTokens = 4;

  // Has so many pages that somebody holds, and as many that can be found.
  void fill(uint32_t pages) {
    EngineOptions options{.context = 8 * pages * kPageTokens, .max_sequences = 2, .prefill_chunk = 512};
    options.page_tokens = kPageTokens;
    engine_ = std::make_unique<Engine>(model_, options);
    book_ = std::make_unique<RequestBook>(Clock::now());
    const SequenceId ended = ask(1, pages, 1);
    while (engine_->step()) {
    }
    for (auto& [id, answer] : engine_->take_answers())
      book_->finish(id, std::make_shared<const Answer>(std::move(answer)), Clock::now());
    ASSERT_FALSE(engine_->sequence(ended));
    const SequenceId streams = ask(2, pages, 4 * pages);
    for (int steps = 0; engine_->sequence(streams)->answer_tokens() < 8; ++steps)
      ASSERT_TRUE(engine_->step());
  }
  SequenceId ask(uint32_t salt, uint32_t pages, uint32_t max_tokens) {
    Request request;
    for (uint32_t i = 0; i < pages * kPageTokens; ++i)
      request.prompt.push_back((i * 7 + salt * (i % 11 + 1)) % uint32_t(bare_.spec.vocab));
    request.max_tokens = max_tokens;
    request.ignore_end = true;
    const SequenceId id = engine_->submit(request);
    RequestEntry entry;
    entry.id = "an id that is too long to be kept without memory of its own";
    entry.prompt = request.prompt;
    book_->add(id, std::move(entry));
    return id;
  }
  template <class Look>
  static uint64_t allocations(Look look) {
    failing_allocator::fail_at(0);
    failing_allocator::take_part();
    look();
    failing_allocator::stand_aside();
    return failing_allocator::count();
  }
  uint64_t allocations_of_kv() {
    return allocations([&] { look_at_kv(*engine_, *book_, 0); });
  }
  uint64_t allocations_of_requests() {
    return allocations([&] { look_at_requests(*engine_, *book_, 0); });
  }

  BareModel bare_{golden_folder("llama3"), exact_kernels(), 1};
  FakeBackend backend_;
  EngineModel model_{.spec = &bare_.spec,
                     .weights = &bare_.weights,
                     .backend = &backend_,
                     .tokenizer = nullptr,
                     .end_tokens = {}};
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<RequestBook> book_;
};

TEST_F(LookedAt, AllocatesAsOftenForAThousandPagesAsForSixteen) {
  fill(16);
  const uint64_t kv = allocations_of_kv(), requests = allocations_of_requests();
  EXPECT_GT(kv, 0u);
  EXPECT_LT(kv, 100u);
  EXPECT_LT(requests, 100u);
  fill(1024);
  const KvLook look = look_at_kv(*engine_, *book_, 0);
  ASSERT_GT(look.cache.groups.front().pages.size(), 2000u);
  // The lists of events grow as they are filled.
  EXPECT_LE(allocations_of_kv(), kv + 16);
  EXPECT_LE(allocations_of_requests(), requests + 16);
}

TEST_F(LookedAt, IsToldElsewhereWithAnAllocationForEachPage) {
  fill(256);
  const KvLook look = look_at_kv(*engine_, *book_, 0);
  const ReportFor report{.viewer = {}, .since = 0, .now = Clock::now()};
  // The test above would see it if this were done on the engine's thread.
  EXPECT_GT(allocations([&] { kv_report(look, report); }), 512u);
}

}  // namespace
}  // namespace quire
