// Models with recurrent layers: their answers are the same however they come about, and a conversation is not computed again.
#include <filesystem>
#include <random>

#include <gtest/gtest.h>
#include <unistd.h>

#include "backend/cpu/kernel_choice.h"
#include "base/error.h"
#include "engine/drafts/drafter.h"
#include "golden_model.h"
#include "kv/tiers/kv_snapshot.h"

namespace quire {
namespace {

// Right now and then: what follows is often what the prompts say.
struct Guesser : Drafter {
  void propose(std::span<Sequence* const> sequences, std::span<const uint32_t> most) override {
    for (size_t i = 0; i < sequences.size(); ++i) {
      const std::vector<TokenId>& tokens = sequences[i]->tokens;
      for (uint32_t n = 0; n < std::min(most[i], 3u); ++n) {
        const size_t from = tokens.size() * 2 / 3 + n;
        sequences[i]->drafts.push_back(from < tokens.size() ? tokens[from] : 5);
      }
    }
  }
  void forget(SequenceId) override {}
  void forget_all() override {}
};

// A golden's name, on a GPU after this.
constexpr std::string_view kGpu = "gpu_";

class Recurrent : public testing::TestWithParam<std::string> {
 protected:
  // Of a test on a GPU where there is none, a CPU's: it is skipped.
  static std::unique_ptr<Backend> open() {
    std::unique_ptr<Backend> gpu = is_on_gpu() ? open_gpu() : nullptr;
    return gpu != nullptr ? std::move(gpu) : std::make_unique<CpuBackend>(kernels_named("auto"), 2);
  }
  static bool is_on_gpu() { return GetParam().starts_with(kGpu); }
  static std::string model_name() { return is_on_gpu() ? GetParam().substr(kGpu.size()) : GetParam(); }

  BareModel model_{golden_folder(model_name()), open()};

  void SetUp() override {
    if (is_on_gpu() && model_.backend.traits().memory == MemoryKind::host)
      GTEST_SKIP() << "this machine has no GPU";
  }

  Recurrent() {
    std::mt19937 random(3);
    for (uint32_t i = 0; i < 40; ++i) {
      Request& request = requests_.emplace_back();
      const uint32_t family = random() % 3, length = 1 + random() % 70;
      for (uint32_t p = 0; p < length; ++p) request.prompt.push_back(plain(family * 31 + p * 7 + p * p));
      if (random() % 3 == 0) request.prompt[random() % length] = plain(uint32_t(random()));
      request.max_tokens = 1 + random() % 20;
      request.sampling = {.temperature = i % 2 == 0 ? 0.0f : 1.0f, .seed = i};
      request.logprobs = true;
    }
  }

  TokenId plain(uint32_t number) const { return 3 + number % (model_.spec.vocab - 8); }

  struct Setting {
    uint32_t sequences = 8, chunk = 24;
    bool sharing = true;
    size_t kv_bytes = 0, state_bytes = 0;
    bool drafts = false;
    bool disk = false;
    uint32_t pipeline = 1;
    bool kv_cache = true;
  };
  std::unique_ptr<Engine> make_engine(const Setting& setting) {
    EngineOptions options{.context = 400, .max_sequences = setting.sequences, .prefill_chunk = setting.chunk};
    options.page_tokens = 8;
    options.kv_cache = setting.kv_cache;
    options.sharing = setting.sharing;
    options.pipeline = setting.pipeline;
    options.kv_bytes = setting.kv_bytes;
    options.state_bytes = setting.state_bytes;
    if (setting.disk) {
      options.disk_bytes = 64 << 20;
      options.disk_folder = testing::TempDir();
      options.disk_patience = 1e9;
    }
    // Whether guesses pay is not known then, and it always tries.
    if (setting.drafts) options.now = [] { return Clock::time_point(); };
    return std::make_unique<Engine>(model_.engine_model(), options,
                                    setting.drafts ? std::make_unique<Guesser>() : nullptr);
  }
  KvLayout layout() const { return make_kv_layout(kv_shapes(model_.spec, KvFormats()), 8); }
  size_t small_memory() const { return kv_bytes(layout(), pages_for(layout(), 160, 24, 3)); }

  using Result = std::pair<std::vector<TokenId>, std::vector<float>>;
  std::vector<Result> answers(Engine& engine) {
    std::vector<SequenceId> ids;
    for (const Request& request : requests_) ids.push_back(engine.submit(request));
    while (engine.step()) engine.kv().check_invariants();
    engine.check_invariants();
    EXPECT_EQ(engine.kv().stats().held_pages, 0u);
    std::vector<Result> results;
    for (const SequenceId id : ids) {
      const Answer answer = engine.take_answer(id).value();
      accepted_ += answer.account.accepted;
      drafted_ += answer.account.drafted;
      cached_ += answer.account.cached_tokens;
      results.emplace_back(answer.tokens, answer.logprobs);
    }
    return results;
  }
  std::vector<Result> alone() {
    std::vector<Result> results;
    for (const Request& request : requests_) {
      const auto engine = make_engine({.sequences = 1, .chunk = 400, .sharing = false});
      const Answer answer = engine->run(request);
      results.emplace_back(answer.tokens, answer.logprobs);
    }
    return results;
  }

  std::vector<Request> requests_;
  uint64_t accepted_ = 0, drafted_ = 0, cached_ = 0;
};

TEST_P(Recurrent, AnswersAreTheSameSharedInChunksPreemptedGuessedAndFromTheDisk) {
  const std::vector<Result> alone = this->alone();
  EXPECT_EQ(answers(*make_engine({.kv_cache = false})), alone);
  const auto shared = make_engine({});
  EXPECT_EQ(answers(*shared), alone);
  cached_ = 0;
  EXPECT_EQ(answers(*shared), alone) << "with everything cached";
  EXPECT_GT(cached_, 200u);
  EXPECT_EQ(answers(*make_engine({.chunk = 5, .pipeline = 2})), alone);
  const auto small = make_engine({.kv_bytes = small_memory()});
  EXPECT_EQ(answers(*small), alone);
  EXPECT_GT(small->scheduler().preemptions() + small->kv().events().count(KvEventKind::evicted), 0u);
  drafted_ = accepted_ = 0;
  EXPECT_EQ(answers(*make_engine({.drafts = true})), alone);
  EXPECT_GT(drafted_, accepted_ + 20) << "some guesses are wrong";
  EXPECT_EQ(answers(*make_engine({.kv_bytes = small_memory(), .drafts = true, .pipeline = 2})), alone);
  const auto disk = make_engine({.kv_bytes = small_memory(), .disk = true});
  EXPECT_EQ(answers(*disk), alone);
  EXPECT_EQ(answers(*disk), alone);
  EXPECT_GT(disk->kv().events().count(KvEventKind::loaded), 5u);
}

TEST_P(Recurrent, PrunedPromptsLeaveTheStateAsItIsAndTheAnswersAsTheyAre) {
  constexpr PruningPolicy kPolicies[] = {PruningPolicy::evaluator, PruningPolicy::snap,
                                         PruningPolicy::streaming, PruningPolicy::expected};
  const bool has_equal_heads = is_on_gpu();  // the other policies want unequal ones
  const auto judge = std::ranges::find_if(model_.spec.layers, [](const LayerSpec& layer) {
    return std::holds_alternative<GqaSpec>(layer.mixer) && layer.window() == 0 && !layer.beside;
  });
  const std::vector<Result> whole = this->alone();
  for (size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i].prompt.size() < 12 || i % 5 == 4) continue;
    const size_t policy = has_equal_heads ? i % 2 * 2 : i % 4;
    PruningOptions pruning{.policy = kPolicies[policy], .share = 0.25 * double(1 + i % 3), .window = 4};
    pruning.evaluator = {.layer = uint32_t(judge - model_.spec.layers.begin()), .heads = {0, 1}};
    if (i % 3 == 0) pruning.scored = uint32_t(requests_[i].prompt.size()) - 3;
    requests_[i].pruning = pruning;
  }
  if (judge == model_.spec.layers.end()) {  // there are states alone, or with rows in one layer
    const auto pruned =
        std::ranges::find_if(requests_, [](const Request& r) { return r.pruning.has_value(); });
    EXPECT_THROW(make_engine({})->submit(*pruned), Error);
    return;
  }
  const std::vector<Result> alone = this->alone();
  EXPECT_NE(alone, whole);
  const auto shared = make_engine({});
  EXPECT_EQ(answers(*shared), alone);
  cached_ = 0;
  EXPECT_EQ(answers(*shared), alone) << "with everything cached";
  EXPECT_GT(cached_, 100u);
  EXPECT_EQ(answers(*make_engine({.chunk = 5, .pipeline = 2})), alone);
  EXPECT_EQ(answers(*make_engine({.kv_bytes = small_memory()})), alone);
  EXPECT_EQ(answers(*make_engine({.drafts = true})), alone);
  const auto disk = make_engine({.kv_bytes = small_memory(), .drafts = true, .disk = true});
  EXPECT_EQ(answers(*disk), alone);
  EXPECT_EQ(answers(*disk), alone);
  Request again = requests_[0];
  again.pruning = PruningOptions{.policy = PruningPolicy::zip, .share = 0.5, .window = 4};
  EXPECT_THROW(make_engine({})->submit(again), Error) << "a state is not gone back from";
}

TEST_P(Recurrent, SeveralAnswersToOnePromptShareItsState) {
  Request request = requests_[0];
  request.prompt.clear();
  for (uint32_t token = 0; token < 67; ++token) request.prompt.push_back(plain(token));
  request.sampling = {.temperature = 1, .seed = 4};
  request.max_tokens = 10;
  const auto engine = make_engine({});
  const std::vector<SequenceId> ids = engine->submit_choices(request, 3);
  while (engine->step()) engine->kv().check_invariants();
  for (uint32_t choice = 0; choice < 3; ++choice) {
    const Answer answer = engine->take_answer(ids[choice]).value();
    Request one = request;
    one.choice = choice;
    EXPECT_EQ(answer.tokens, make_engine({.sequences = 1, .sharing = false})->run(one).tokens);
    if (choice > 0) {
      EXPECT_EQ(answer.account.cached_tokens, 64u) << "the last node that the prompt fills";
    }
  }
}

TEST_P(Recurrent, StatesAreSavedAndRestored) {
  const std::string path = testing::TempDir() + "/quire_recurrent_" + std::to_string(::getpid()) + GetParam();
  const KvIdentity identity{.model_name = "made", .model = "1", .positions = "", .kernels = "auto"};
  const auto first = make_engine({});
  const std::vector<Result> cold = answers(*first);
  {
    KvExport all(first->kv());
    save_snapshot(path, identity, first->kv().layout(), [&] { return all.take(1000, first->make_moves()); });
  }
  const auto second = make_engine({});
  const SnapshotFigures restored = restore_snapshot(second->kv(), second->make_moves(), identity, path);
  std::filesystem::remove(path);
  EXPECT_GT(restored.tokens, 100u);
  cached_ = 0;
  EXPECT_EQ(answers(*second), cold);
  EXPECT_GT(cached_, 200u);
}

// Each turn is the whole conversation so far, the answer as it was given, and something new.
TEST_P(Recurrent, AConversationComputesWhatIsNewAndLessThanAChunk) {
  for (const bool thinks : {false, true}) {
    const auto engine = make_engine({.sequences = 2, .chunk = 64});
    std::vector<TokenId> said;
    for (uint32_t token = 0; token < 60; ++token) said.push_back(plain(token * 5));
    uint32_t answered = 0;
    for (uint32_t turn = 0; turn < 20; ++turn) {
      const size_t known = said.size();
      for (uint32_t token = 0; token < 5; ++token) said.push_back(plain(turn * 17 + token * 3));
      Request request;
      request.prompt = said;
      request.sampling = {.temperature = 1, .seed = turn};
      request.max_tokens = 10;
      request.ignore_end = true;
      const Answer answer = engine->run(request);
      const uint32_t computed = uint32_t(said.size()) - answer.account.cached_tokens;
      // What was answered is in the next prompt, but for what was thought: then the texts part where the last answer began.
      const uint32_t is_new = uint32_t(said.size() - known) + (thinks ? answered : 0);
      if (turn > 0) {
        EXPECT_LT(computed, is_new + engine->kv().node_tokens())
            << "turn " << turn << (thinks ? ", thinking" : "");
      }
      const Answer anew = make_engine({.sequences = 1, .chunk = 400, .sharing = false})->run(request);
      ASSERT_EQ(answer.tokens, anew.tokens) << "turn " << turn;
      const size_t kept = thinks ? 4 : answer.tokens.size();  // the last ones
      answered = thinks ? uint32_t(kept) : 0;
      said.insert(said.end(), answer.tokens.end() - ptrdiff_t(kept), answer.tokens.end());
    }
    engine->check_invariants();
  }
}

// One for each kind of recurrent layer, of value heads in both orders, and some with experts.
INSTANTIATE_TEST_SUITE_P(Models, Recurrent,
                         testing::Values("qwen3_5", "qwen3_5_nested", "qwen3_next", "lfm2", "mamba2",
                                         "nemotron_h_moe", "jamba", "falcon_h1"),
                         [](const auto& info) { return info.param; });

INSTANTIATE_TEST_SUITE_P(OnAGpu, Recurrent,
                         testing::Values("gpu_qwen3_5", "gpu_qwen3_5_nested", "gpu_qwen3_next", "gpu_lfm2",
                                         "gpu_mamba2", "gpu_nemotron_h_moe", "gpu_jamba", "gpu_falcon_h1"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace quire
