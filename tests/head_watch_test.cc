// Requests that watch a head: what they are told is what explain computes for the same tokens, whatever else is served.
#include <random>

#include <gtest/gtest.h>

#include "backend/cpu/kernel_choice.h"
#include "base/error.h"
#include "engine/drafts/drafter.h"
#include "explain/attention.h"
#include "golden_model.h"

namespace quire {
namespace {

constexpr uint32_t kPrompt = 50, kAnswer = 6;

using SharesByRow = std::vector<std::vector<float>>;  // by position, from the first that is told

std::vector<TokenId> some_tokens(uint32_t count, uint32_t vocab, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<TokenId> tokens;
  for (uint32_t i = 0; i < count; ++i) tokens.push_back(TokenId(random() % vocab));
  return tokens;
}

class HeadWatching : public testing::TestWithParam<const char*> {
 protected:
  HeadWatching() : model_(golden_folder(GetParam()), kernels_named("auto"), 2) {}

  // Pages of the usual size: attention goes page by page, so that the last bits depend on it.
  EngineOptions options(uint32_t chunk, uint32_t sequences = 4) const {
    return {.context = 128, .max_sequences = sequences, .prefill_chunk = chunk};
  }
  Request request(uint32_t seed, uint32_t tokens = kPrompt) const {
    Request request;
    request.prompt = some_tokens(tokens, model_.spec.vocab, seed);
    request.sampling.temperature = 0;
    request.max_tokens = kAnswer;
    request.ignore_end = true;
    return request;
  }
  uint32_t layers() const { return uint32_t(model_.spec.layers.size()); }
  uint32_t head_of(uint32_t layer) const { return (layer * 3 + 1) % model_.spec.layers[0].gqa().heads; }

  // As explain has it: a pass over the same tokens without an engine.
  SharesByRow traced(const Request& request, uint32_t layer, uint32_t head) {
    const AttentionTrace trace =
        trace_attention(model_.engine_model(), options(16), request, {.layer = layer, .head = head});
    SharesByRow rows;
    for (const AttentionRow& row : trace.rows) rows.push_back(row.shares);
    return rows;
  }
  // The request as one that collects what it is told in `rows`.
  static Request watched(Request request, uint32_t layer, uint32_t head, SharesByRow& rows,
                         uint32_t first = 0) {
    request.watch = {.layer = layer,
                     .head = head,
                     .first = first,
                     .on_row = [&rows, first](uint32_t position, std::span<const float> shares) {
                       EXPECT_EQ(position, first + rows.size()) << "each once, in order";
                       EXPECT_EQ(shares.size(), position + 1);
                       rows.emplace_back(shares.begin(), shares.end());
                     }};
    return request;
  }
  Answer alone(const Request& request) { return Engine(model_.engine_model(), options(16)).run(request); }

  BareModel model_;
};

TEST_P(HeadWatching, TellsWhatExplainComputesInChunksOfAnySize) {
  for (uint32_t layer = 0; layer < layers(); ++layer) {
    const SharesByRow expected = traced(request(1), layer, head_of(layer));
    ASSERT_EQ(expected.size(), kPrompt + kAnswer - 1);
    for (const uint32_t chunk : {1u, 7u, 64u}) {
      SharesByRow rows;
      Engine engine(model_.engine_model(), options(chunk));
      const Answer answer = engine.run(watched(request(1), layer, head_of(layer), rows));
      EXPECT_EQ(answer.tokens, alone(request(1)).tokens) << "it answers as any other";
      EXPECT_EQ(rows, expected) << "layer " << layer << " in chunks of " << chunk;
      engine.check_invariants();
    }
  }
}

TEST_P(HeadWatching, TakesNothingFromTheCacheButWhatItNeedNotTell) {
  constexpr uint32_t kFirst = 21;
  SharesByRow all, last;
  Engine engine(model_.engine_model(), options(16));
  engine.run(request(2));
  const Answer whole = engine.run(watched(request(2), 0, 0, all));
  EXPECT_EQ(whole.account.cached_tokens, 0u);
  EXPECT_EQ(all, traced(request(2), 0, 0));
  const Answer rest = engine.run(watched(request(2), 0, 0, last, kFirst));
  EXPECT_EQ(rest.account.cached_tokens, kFirst);
  EXPECT_EQ(last, SharesByRow(all.begin() + kFirst, all.end()));
  EXPECT_EQ(engine.kv().stats().held_pages, 0u);
  engine.check_invariants();
}

TEST_P(HeadWatching, ChangesNothingForOthersAndIsNotChangedByThem) {
  SharesByRow first, second;
  Engine engine(model_.engine_model(), options(12, 5));
  std::vector<Request> asks = {watched(request(3), 0, 0, first), request(4),
                               watched(request(5), layers() - 1, head_of(2), second), request(3), request(6)};
  asks[4].pruning = PruningOptions{.tokens = 40};  // its scorer watches the same steps
  std::vector<SequenceId> ids;
  for (const Request& ask : asks) ids.push_back(engine.submit(ask));
  while (engine.step()) engine.check_invariants();
  for (size_t i = 0; i < asks.size(); ++i) {
    Request unwatched = asks[i];
    unwatched.watch.reset();
    EXPECT_EQ(engine.take_answer(ids[i])->tokens, alone(unwatched).tokens) << i;
  }
  EXPECT_EQ(first, traced(request(3), 0, 0));
  EXPECT_EQ(second, traced(request(5), layers() - 1, head_of(2)));
}

TEST_P(HeadWatching, TellsEachRowOnceAlthoughAPreemptionHasThemComputedAgain) {
  for (const bool sharing : {true, false}) {
    SharesByRow rows;
    EngineOptions one_at_a_time = options(8, 1);
    one_at_a_time.sharing = sharing;
    Engine engine(model_.engine_model(), one_at_a_time);
    Request patient = watched(request(7), 0, 0, rows);
    patient.priority = -1;
    const SequenceId id = engine.submit(patient);
    engine.step();
    engine.step();
    EXPECT_EQ(rows.size(), 16u);
    const SequenceId other = engine.submit(request(8));
    while (engine.step()) engine.check_invariants();
    const Answer answer = engine.take_answer(id).value();
    EXPECT_EQ(answer.account.preemptions, 1u);
    EXPECT_EQ(answer.tokens, alone(request(7)).tokens);
    EXPECT_EQ(engine.take_answer(other)->tokens, alone(request(8)).tokens);
    EXPECT_EQ(rows, traced(request(7), 0, 0));
  }
}

TEST_P(HeadWatching, WorksWithoutACacheAndBesideADrafter) {
  const SharesByRow expected = traced(request(9), 0, 0);
  SharesByRow without_cache, drafted;
  EngineOptions forgetful = options(16);
  forgetful.kv_cache = false;
  Engine(model_.engine_model(), forgetful).run(watched(request(9), 0, 0, without_cache));
  EXPECT_EQ(without_cache, expected);
  Engine(model_.engine_model(), options(16), std::make_unique<LookupDrafter>())
      .run(watched(request(9), 0, 0, drafted));
  EXPECT_EQ(drafted, expected);
}

TEST_P(HeadWatching, RefusesWhatItCannotTell) {
  SharesByRow rows;
  EngineOptions wide = options(16);
  wide.context = HeadWatch::kMostTokens + 100;
  Engine engine(model_.engine_model(), wide);
  EXPECT_THROW(engine.submit(watched(request(1), layers(), 0, rows)), Error);
  EXPECT_THROW(engine.submit(watched(request(1), 0, model_.spec.layers[0].gqa().heads, rows)), Error);
  EXPECT_THROW(engine.submit(watched(request(1, HeadWatch::kMostTokens + 1), 0, 0, rows)), Error);
  Request pruned = watched(request(1), 0, 0, rows);
  pruned.pruning = PruningOptions{.tokens = 40};
  EXPECT_THROW(engine.submit(pruned), Error);
  EXPECT_FALSE(engine.step()) << "nothing of them is left";
}

INSTANTIATE_TEST_SUITE_P(Models, HeadWatching,
                         testing::Values("llama3",    // grouped heads
                                         "gemma2",    // every other layer sees a window; a soft cap
                                         "mistral",   // every layer does
                                         "gpt_oss"),  // sinks
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace quire
