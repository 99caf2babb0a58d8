// Layers that cache what the engine knows nothing of: its answers are the same however they come about.
#include <cstring>
#include <filesystem>
#include <random>

#include <gtest/gtest.h>
#include <unistd.h>

#include "base/error.h"
#include "engine/drafts/drafter.h"
#include "kv/tiers/kv_snapshot.h"
#include "layers_case.h"

namespace quire {
namespace {

constexpr uint32_t kKept = 12;   // values of a row that are kept
constexpr uint32_t kStride = 4;  // tokens to a row

enum class States : uint8_t { none, one, no_toy };  // no_toy: a model with rows of four tokens

// A mixer of three streams: the mean of two rows through keys and values; the mean of all rows so far, which it writes and
// reads itself; and that of every fourth token once more. It may have a state as well, which forgets slowly.
class MeansOfAll : public Block {
 public:
  MeansOfAll(uint32_t dim, States states) : dim_(dim), states_(states) {}
  std::vector<Role> roles() const override { return {}; }
  std::vector<size_t> scratch() const override { return {dim_}; }
  KvLayer cached() const override {
    const KvStream means{.kv_heads = 1,
                         .key_dim = kKept,
                         .window = 2,
                         .page_tokens = 8,
                         .key_format = KvFormat::f32,
                         .own_format = true};
    KvStream fourths = means;
    fourths.window = fourths.page_tokens = 0;
    fourths.stride = kStride;
    KvLayer all = {{.kv_heads = 1, .key_dim = dim_, .value_dim = dim_, .window = 2}, means, fourths};
    if (states_ == States::none) return all;
    all.push_back(
        {.kv_heads = 1, .key_dim = kKept, .key_format = KvFormat::f32, .state = true, .own_format = true});
    return all;
  }
  void forward(const BlockStep& step) const override {
    store_and_mean_two(step, dim_);
    for (uint32_t t = 0; t < step.batch.tokens.size(); ++t) add_means(step, t);
    for (uint32_t r = 0; r < step.batch.runs.size() && states_ == States::one; ++r) add_states(step, r);
  }

 private:
  static float* at(const KvView& kv, uint32_t run, uint32_t row) {
    return reinterpret_cast<float*>(kv.key_row(run, 0, row));
  }
  static void add_means(const BlockStep& step, uint32_t token) {
    const uint32_t run = step.batch.run_of_token[token];
    const uint32_t row = step.kv[1].head_row(run, 0, step.batch.runs[run].row_of(token));
    const float* before = row == 0 ? nullptr : at(step.kv[1], run, row - 1);
    float* mean = at(step.kv[1], run, row);
    const uint32_t fourths = (row + 1) / kStride;  // that are complete
    for (uint32_t i = 0; i < kKept; ++i) {
      const float was = before == nullptr ? 0 : before[i];
      mean[i] = was + (step.in.f32.row(token)[i] - was) / float(row + 1);
      if ((row + 1) % kStride == 0) at(step.kv[2], run, fourths - 1)[i] = mean[i];
      step.out.row(token)[i] += mean[i];
      // Far back, so that pages are read that others may have written.
      if (fourths > 0) step.out.row(token)[i] += at(step.kv[2], run, (fourths - 1) / 2)[i] / 2;
    }
  }

  static void add_states(const BlockStep& step, uint32_t index) {
    const KvView& kv = step.kv[3];
    const TokenRun& run = step.batch.runs[index];
    float state[kKept] = {};
    if (const std::byte* before = kv.state_before(index, 0)) std::memcpy(state, before, sizeof(state));
    for (uint32_t token = run.begin; token < run.begin + run.count; ++token) {
      for (uint32_t i = 0; i < kKept; ++i) {
        state[i] = 0.875f * state[i] + 0.25f * step.in.f32.row(token)[i];
        step.out.row(token)[i] += state[i];
      }
      for (uint32_t left = 0; left < kv.states_left(index); ++left) {
        if (kv.state_row(index, left) == run.row_of(token) + 1)
          std::memcpy(kv.state_left(index, 0, left), state, sizeof(state));
      }
    }
  }

  uint32_t dim_;
  States states_;
};

PlainRows means_of_all(const PlainRows& in, States states) {
  PlainRows out = in;
  std::vector<double> state(kKept);
  std::vector<double> mean(kKept);
  PlainRows fourths;
  for (size_t t = 0; t < in.size(); ++t) {
    for (size_t i = 0; t > 0 && i < in[t].size(); ++i) out[t][i] = (in[t - 1][i] + in[t][i]) / 2;
    for (size_t i = 0; i < kKept; ++i) mean[i] += (in[t][i] - mean[i]) / double(t + 1);
    if ((t + 1) % kStride == 0) fourths.push_back(mean);
    for (size_t i = 0; i < kKept; ++i) {
      state[i] = 0.875 * state[i] + 0.25 * in[t][i];
      out[t][i] += mean[i] + (states == States::one ? state[i] : 0);
      if (!fourths.empty()) out[t][i] += fourths[(fourths.size() - 1) / 2][i] / 2;
    }
  }
  return out;
}

// Of a model whose rows are of several tokens, in pages of few.
std::shared_ptr<MadeFile> make_compressed() {
  return std::make_shared<MadeFile>(small_compressed(), [&](ModelSpec& spec) {
    spec.layers[2].mixer = spec.layers[3].mixer;  // 128 are more than these texts have
    for (LayerSpec& layer : spec.layers) std::get<CompressedSpec>(layer.mixer).page_tokens = 16;
  });
}

std::shared_ptr<MadeFile> make(States states) {
  if (states == States::no_toy) return make_compressed();
  return std::make_shared<MadeFile>(small_llama(), [&](ModelSpec& spec) {
    spec.layers[1].mixer = std::make_shared<MeansOfAll>(spec.dim, states);
    spec.layers[2].gqa().window = 9;
    spec.layers[2].gqa().page_tokens = 16;
  });
}

// Nearly always wrong.
struct Guesser : Drafter {
  void propose(std::span<Sequence* const> sequences, std::span<const uint32_t> most) override {
    for (size_t i = 0; i < sequences.size(); ++i) {
      for (uint32_t n = 0; n < std::min(most[i], 3u); ++n)
        sequences[i]->drafts.push_back((sequences[i]->tokens.back() * 7 + n) % 40);
    }
  }
  void forget(SequenceId) override {}
  void forget_all() override {}
};

class CachedLayers : public testing::TestWithParam<States> {
 protected:
  CachedLayers() {
    std::mt19937 random(5);
    for (uint32_t i = 0; i < 60; ++i) {
      Request& request = requests_.emplace_back();
      const uint32_t family = random() % 3, length = 1 + random() % 60;
      for (uint32_t p = 0; p < length; ++p) request.prompt.push_back((family * 31 + p * 7 + p * p) % 40);
      if (random() % 3 == 0) request.prompt[random() % length] = random() % 40;
      request.max_tokens = 1 + random() % 24;
      request.sampling = {.temperature = i % 2 == 0 ? 0.0f : 1.0f, .seed = i};
      request.logprobs = true;
    }
  }

  struct Setting {
    uint32_t sequences = 8, chunk = 24;
    bool sharing = true;
    uint32_t pool_tokens = 0;  // 0: room for all
    bool drafts = false;
    bool disk = false;
    uint32_t pipeline = 1;
    uint32_t states = 0;  // that are kept; 0: as is usual
  };
  std::unique_ptr<Engine> make_engine(const Setting& setting) {
    EngineOptions options{.context = 96, .max_sequences = setting.sequences, .prefill_chunk = setting.chunk};
    options.page_tokens = 4;
    options.sharing = setting.sharing;
    options.pipeline = setting.pipeline;
    const KvLayout layout = make_kv_layout(kv_shapes(model_.spec, options.kv_formats), 4);
    if (setting.pool_tokens > 0)
      options.kv_bytes = kv_bytes(layout, pages_for(layout, setting.pool_tokens, setting.chunk, 1));
    options.state_bytes = setting.states * layout.state_bytes();
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
      results.emplace_back(answer.tokens, answer.logprobs);
    }
    return results;
  }
  std::vector<Result> alone() {
    std::vector<Result> results;
    for (const Request& request : requests_) {
      const auto engine = make_engine({.sequences = 1, .chunk = 96, .sharing = false});
      const Answer answer = engine->run(request);
      results.emplace_back(answer.tokens, answer.logprobs);
    }
    return results;
  }

  std::shared_ptr<MadeFile> file_ = make(GetParam());
  BareModel model_{file_, file_->spec(), scalar_kernels(), 2};
  std::vector<Request> requests_;
  uint32_t accepted_ = 0, drafted_ = 0;
};

TEST_P(CachedLayers, LieInPagesByTheirPolicyWithRowsOfTheirOwn) {
  const KvLayout layout = make_kv_layout(kv_shapes(model_.spec, KvFormat::f16), 4);
  if (GetParam() == States::no_toy) {
    EXPECT_EQ(layout.groups.size(), 3u);  // the window, rows of tokens, what they are made of
    EXPECT_EQ(layout.node_tokens, 16u);
    EXPECT_EQ(layout.at(layout.places[1][1]).page_rows, 4u);
    EXPECT_EQ(layout.groups[layout.places[1][1].group].page_bytes, 3u * 4 * (16 + 8) * 2);
    EXPECT_EQ(layout.groups[layout.places[1][2].group].page_bytes, 3u * 8 * 2 * (32 + 16) * sizeof(float));
    return;
  }
  const bool state = GetParam() == States::one;
  ASSERT_EQ(layout.places[1].size(), state ? 4u : 3u);
  EXPECT_EQ(layout.places[0].size(), 1u);
  ASSERT_EQ(layout.groups.size(), state ? 5u : 4u);  // everything; two windows of 2; one of 9
  EXPECT_EQ(layout.has_states(), state);
  if (state) {
    EXPECT_EQ(layout.at(layout.places[1][3]).page_rows, 1u);
  }
  EXPECT_EQ(layout.node_tokens, 16u);
  const KvLayerLayout& means = layout.at(layout.places[1][1]);
  EXPECT_EQ(layout.groups[layout.places[1][1].group].page_bytes, 8 * kKept * sizeof(float));
  EXPECT_EQ(means.page_rows, 8u);
  EXPECT_EQ(means.value_row_bytes, 0u);
  const KvLayout::Place fourths = layout.places[1][2];
  EXPECT_EQ(fourths.group, layout.places[0][0].group);
  EXPECT_EQ(layout.at(fourths).page_rows, 1u);
  // Two layers of two heads, key and value of 8 values in f16; one row of f32.
  EXPECT_EQ(layout.groups[fourths.group].page_bytes, 4 * 2 * 2 * (8 + 8) * 2 + kKept * sizeof(float));
}

TEST_P(CachedLayers, GiveWhatIsComputedPlainlyInAnyChunks) {
  if (GetParam() != States::no_toy) {  // a golden has what that comes to
    BareModel exact(file_, file_->spec(), exact_kernels(), 1);
    const std::vector<float> seen = all_logits(exact, some_tokens(45), 45);
    const std::vector<double> plain = plain_logits(
        *file_, some_tokens(45), [](size_t, const PlainRows& in) { return means_of_all(in, GetParam()); });
    expect_near(seen, plain, 2e-5);
  }
  for (const uint32_t chunk : {1u, 3u, 7u, 16u})
    EXPECT_EQ(all_logits(model_, some_tokens(45), chunk), all_logits(model_, some_tokens(45), 45));
}

TEST_P(CachedLayers, GiveTheSameAnswersSharedInChunksPreemptedGuessedAndFromTheDisk) {
  const std::vector<Result> alone = this->alone();
  const uint32_t few = GetParam() == States::no_toy ? 400 : 120;  // most of its pages are of windows
  const auto shared = make_engine({});
  EXPECT_EQ(answers(*shared), alone);
  EXPECT_GT(shared->kv().events().count(KvEventKind::shared), 50u);
  EXPECT_EQ(answers(*shared), alone) << "with everything cached";
  EXPECT_EQ(answers(*make_engine({.chunk = 5, .pipeline = 2})), alone);
  const auto small = make_engine({.pool_tokens = few, .states = 8});
  EXPECT_EQ(answers(*small), alone);
  EXPECT_GT(small->scheduler().preemptions(), 0u);
  drafted_ = accepted_ = 0;
  EXPECT_EQ(answers(*make_engine({.pool_tokens = few, .drafts = true, .states = 8})), alone);
  EXPECT_GT(drafted_, accepted_ + 50) << "some guesses are wrong";
  EXPECT_EQ(answers(*make_engine({.drafts = true, .pipeline = 2})), alone);
  const auto disk = make_engine({.pool_tokens = few, .disk = true});
  EXPECT_EQ(answers(*disk), alone);
  EXPECT_GT(disk->kv().events().count(KvEventKind::loaded), 10u);
}

TEST_P(CachedLayers, GoOnWhereAnAnswerEnded) {
  const auto shared = make_engine({.pool_tokens = 8000, .states = 200});
  const std::vector<Result> first = answers(*shared);
  const uint64_t copied = shared->kv().events().count(KvEventKind::copied);
  for (size_t i = 0; i < requests_.size(); ++i) {
    Request& request = requests_[i];
    request.prompt.insert(request.prompt.end(), first[i].first.begin(), first[i].first.end());
    for (TokenId token : {3, 1, 2}) request.prompt.push_back(token);
    request.max_tokens = 5;
  }
  EXPECT_EQ(answers(*shared), alone());
  EXPECT_GT(shared->kv().events().count(KvEventKind::copied), copied + 20);
}

TEST_P(CachedLayers, AreSavedAndRestored) {
  const std::string path = testing::TempDir() + "/quire_cached_layers_" + std::to_string(::getpid());
  const KvIdentity identity{.model_name = "made", .model = "1", .positions = "", .kernels = "scalar"};
  const auto first = make_engine({});
  const std::vector<Result> cold = answers(*first);
  KvExport all(first->kv());
  save_snapshot(path, identity, first->kv().layout(), [&] { return all.take(1000, first->make_moves()); });
  const auto second = make_engine({});
  const SnapshotFigures restored = restore_snapshot(second->kv(), second->make_moves(), identity, path);
  std::filesystem::remove(path);
  EXPECT_GT(restored.tokens, 100u);
  const std::vector<TokenId>& longest =
      std::ranges::max(requests_, {}, [](const Request& r) { return r.prompt.size(); }).prompt;
  EXPECT_EQ(second->lookup(longest).tokens, first->lookup(longest).tokens);
  EXPECT_EQ(answers(*second), cold);
}

TEST_P(CachedLayers, ThatKeepMoreThanKeysAndValuesAreNotPruned) {
  const auto engine = make_engine({});
  Request request = requests_[0];
  request.prompt = some_tokens(40);
  request.pruning = PruningOptions{.share = 0.5, .window = 4};
  EXPECT_THROW(engine->submit(request), Error);
}

std::string name_of(States states) {
  return states == States::none ? "rows" : states == States::one ? "state" : "rows_of_tokens";
}

INSTANTIATE_TEST_SUITE_P(Models, CachedLayers, testing::Values(States::none, States::one, States::no_toy),
                         [](const auto& info) { return name_of(info.param); });

}  // namespace
}  // namespace quire
