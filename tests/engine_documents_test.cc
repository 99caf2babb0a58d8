// Many questions, one document: what is left of a pruned text is begun with by whoever asks about it, and nobody can tell.
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "base/error.h"
#include "golden_model.h"
#include "kv/tiers/kv_export.h"

namespace quire {
namespace {

class EngineDocuments : public testing::TestWithParam<PruningPolicy> {
 protected:
  static constexpr uint32_t kDocument = 42, kQuestions = 6;

  EngineDocuments() { options_.page_tokens = 4; }

  static std::vector<TokenId> document() {
    std::vector<TokenId> tokens;
    for (uint32_t i = 0; i < kDocument; ++i) tokens.push_back(1 + i * 37 % 200);
    return tokens;
  }
  Request question(uint32_t n, double share = 0.5) const {
    Request request;
    request.prompt = document();
    for (uint32_t i = 0; i < 3 + n; ++i) request.prompt.push_back(3 + (n + 1) * (i + 5) % 90);
    request.max_tokens = 5;
    request.ignore_end = true;
    request.logprobs = true;
    request.sampling.temperature = 0;
    request.pruning = PruningOptions{
        .policy = GetParam(), .share = share, .window = 4, .evaluator = {.layer = 0, .heads = {0, 2}}};
    request.pruning->scored = kDocument;
    request.pruning->is_shared = true;
    return request;
  }
  using Told = std::pair<std::vector<TokenId>, std::vector<float>>;
  static Told told(const Answer& answer) { return {answer.tokens, answer.logprobs}; }
  // Each by itself, of a document that nobody has pruned before.
  const std::vector<Told>& alone() {
    for (uint32_t n = 0; alone_.size() < kQuestions; ++n) {
      Engine engine(model_.engine_model(), options_);
      const Answer answer = engine.run(question(n));
      EXPECT_EQ(answer.account.cached_tokens, 0u);
      EXPECT_EQ(answer.account.pruned_tokens, kDocument - 24);  // whole pages stay
      alone_.push_back(told(answer));
    }
    return alone_;
  }
  // All of them, as they come; says how many began with the document.
  uint32_t ask_all(Engine& engine, std::vector<Told>& answers) {
    std::vector<SequenceId> ids;
    for (uint32_t n = 0; n < kQuestions; ++n) ids.push_back(engine.submit(question(n)));
    while (engine.step()) engine.check_invariants();
    uint32_t began = 0;
    for (const SequenceId id : ids) {
      const Answer answer = engine.take_answer(id).value();
      EXPECT_EQ(answer.finish_reason, FinishReason::length);
      began += answer.account.cached_tokens == kDocument ? 1 : 0;
      answers.push_back(told(answer));
    }
    return began;
  }

  BareModel model_{golden_folder("llama3"), exact_kernels(), 1};
  EngineOptions options_{.context = 96, .max_sequences = 3, .prefill_chunk = 16};
  std::vector<Told> alone_;
};

TEST_P(EngineDocuments, AnswersAreTheSameWhetherItIsPrunedNowOrWasBefore) {
  for (const uint32_t chunk : {16u, 5u}) {
    options_.prefill_chunk = chunk;
    Engine engine(model_.engine_model(), options_);
    for (int round = 0; round < 2; ++round) {
      std::vector<Told> answers;
      EXPECT_EQ(ask_all(engine, answers), round == 0 ? kQuestions - 1 : kQuestions);
      EXPECT_EQ(answers, alone()) << chunk;
    }
    ASSERT_EQ(engine.kv().documents().size(), 1u);
    const KvCache::DocumentState state = engine.kv().documents().front();
    EXPECT_EQ(state.rows, 24u);
    EXPECT_EQ(state.pages, 6u);
    EXPECT_THAT(state.name, testing::StartsWith(std::string(name(GetParam())) + "-24-of-42-"));
  }
}

TEST_P(EngineDocuments, AnswersAreTheSameInMemoryThatIsTooSmallForAll) {
  options_.kv_bytes = 2 * 60 * make_kv_layout(kv_shapes(model_.spec, {}), 4).bytes_per_token();
  Engine engine(model_.engine_model(), options_);
  for (int round = 0; round < 3; ++round) {
    std::vector<Told> answers;
    ask_all(engine, answers);
    EXPECT_EQ(answers, alone());
    Request other = question(1);  // evicts some of it
    other.pruning.reset();
    for (TokenId& token : other.prompt) token = token + 7 + TokenId(round);
    engine.run(other);
    engine.check_invariants();
  }
  EXPECT_GT(engine.kv().events().count(KvEventKind::evicted), 0u);
}

TEST_P(EngineDocuments, AnswersAreTheSameFromAFileAndNothingElseIsInIt) {
  const std::string path = testing::TempDir() + "/quire_document_" + std::to_string(::getpid()) + ".kv";
  const KvIdentity identity{.model_name = "fox", .model = "f00d", .positions = "ab", .kernels = "exact"};
  {
    Engine engine(model_.engine_model(), options_);
    engine.run(question(2));
    const auto match = engine.lookup_document({question(2).prompt, {}}, *question(2).pruning).value();
    EXPECT_TRUE(match.is_cached);
    KvExport along(engine.kv(), {std::span<const TokenId>(document()), match.key.salt});
    const SnapshotFigures saved = save_snapshot(path, identity, engine.kv().layout(),
                                                [&] { return along.take(1 << 20, engine.make_moves()); });
    EXPECT_EQ(saved.pages, 6u);
    EXPECT_EQ(saved.tokens, kDocument);
  }
  Engine engine(model_.engine_model(), options_);
  EXPECT_EQ(restore_snapshot(engine.kv(), engine.make_moves(), identity, path).pages, 6u);
  std::vector<Told> answers;
  EXPECT_EQ(ask_all(engine, answers), kQuestions);
  EXPECT_EQ(answers, alone());
  std::filesystem::remove(path);
}

TEST_P(EngineDocuments, IsFoundByTheSameTextPrunedTheSameWayUnderTheSameSaltOnly) {
  Engine engine(model_.engine_model(), options_);
  engine.run(question(0));
  const auto is_cached = [&](const Request& request) {
    const auto match = engine.lookup_document({request.prompt, request.salt}, *request.pruning);
    return match && match->is_cached;
  };
  EXPECT_TRUE(is_cached(question(3)));
  EXPECT_FALSE(is_cached(question(3, 0.7)));
  Request other = question(3);
  other.salt = {.key = 4};
  EXPECT_FALSE(is_cached(other));
  other = question(3);
  other.prompt[kDocument - 1] ^= 1;
  EXPECT_FALSE(is_cached(other));
  other = question(3);
  other.pruning->scored = kDocument - 1;
  EXPECT_FALSE(is_cached(other));
  other = question(3);
  other.pruning->policy =
      GetParam() == PruningPolicy::streaming ? PruningPolicy::snap : PruningPolicy::streaming;
  EXPECT_FALSE(is_cached(other));
  EXPECT_FALSE(engine.lookup_document({question(3).prompt, {}}, *question(3, 1).pruning))
      << "all of it stays";
}

INSTANTIATE_TEST_SUITE_P(Policies, EngineDocuments,
                         testing::Values(PruningPolicy::streaming, PruningPolicy::snap, PruningPolicy::zip,
                                         PruningPolicy::expected, PruningPolicy::evaluator),
                         [](const auto& info) { return std::string(name(info.param)); });

TEST(Documents, OfPoliciesAndModelsThatCannotShareThemAreRefusedInASentence) {
  const auto refusal = [](const std::string& model, PruningPolicy policy) {
    BareModel bare(golden_folder(model), exact_kernels(), 1);
    Engine engine(bare.engine_model(), {.context = 96});
    Request request;
    for (uint32_t i = 0; i < 60; ++i) request.prompt.push_back(1 + i);
    request.pruning =
        PruningOptions{.policy = policy, .share = 0.5, .window = 4, .evaluator = {.layer = 0, .heads = {0}}};
    request.pruning->is_shared = true;
    try {
      engine.submit(request);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(refusal("llama3", PruningPolicy::evaluator_prompt), testing::HasSubstr("with another"));
  EXPECT_THAT(refusal("gemma3", PruningPolicy::snap), testing::HasSubstr("cannot be shared"));
  EXPECT_EQ(refusal("llama3", PruningPolicy::snap), "");
}

TEST(Documents, ThatCannotBeInACacheAreNotTakenFromAFile) {
  const KvLayout layout =
      make_kv_layout(std::vector{KvLayerShape{.kv_heads = 2, .key_dim = 4, .value_dim = 4}}, 4);
  const auto problem = [&](PrunedDocument document) {
    try {
      document.check(layout);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const PrunedDocument good{.name = "zip-8-of-20", .rows = 8, .head_cells = {{0}, {1, 2, 3}}};
  EXPECT_EQ(problem(good), "");
  PrunedDocument bad = good;
  bad.rows = 7;
  EXPECT_NE(problem(bad), "");
  bad = good;
  bad.name = "two words";
  EXPECT_NE(problem(bad), "");
  for (const std::vector<std::vector<uint32_t>>& cells : std::vector<std::vector<std::vector<uint32_t>>>{
           {{0}, {1, 2}}, {{0}, {1, 2, 4}}, {{0}, {1, 2, 2}}, {{}, {0, 1, 2, 3}}, {{0, 1, 2, 3}}}) {
    bad = good;
    bad.head_cells = cells;
    EXPECT_NE(problem(bad), "");
  }
}

}  // namespace
}  // namespace quire
