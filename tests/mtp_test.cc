// Layers that predict further tokens, as drafters: they compute what they should, and answers do not depend on them.
#include <numeric>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "backend/cpu/kernel_choice.h"
#include "base/error.h"
#include "engine/drafts/mtp_drafter.h"
#include "late_backend.h"
#include "made_model.h"
#include "runner/runner.h"

namespace quire {
namespace {

using testing::HasSubstr;

// A llama of four layers with a fifth that predicts.
Metadata predicting_llama() {
  Metadata metadata = small_llama();
  metadata.set("llama.block_count", uint64_t(5));
  metadata.set("llama.nextn_predict_layers", uint64_t(1));
  return metadata;
}

// The same with latent rows.
Metadata predicting_deepseek() {
  Metadata metadata = predicting_llama();
  metadata.set("general.architecture", std::string("deepseek2"));
  const std::pair<const char*, uint64_t> kCounts[] = {{"block_count", 5},
                                                      {"nextn_predict_layers", 1},
                                                      {"context_length", 256},
                                                      {"embedding_length", 32},
                                                      {"feed_forward_length", 48},
                                                      {"attention.head_count", 4},
                                                      {"attention.key_length", 16},
                                                      {"attention.value_length", 12},
                                                      {"attention.kv_lora_rank", 20},
                                                      {"attention.q_lora_rank", 14},
                                                      {"rope.dimension_count", 8},
                                                      {"vocab_size", 40}};
  for (const auto& [key, value] : kCounts) metadata.set(std::string("deepseek2.") + key, value);
  return metadata;
}

std::vector<float> random_values(uint32_t seed, size_t count) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> between(-1, 1);
  std::vector<float> values(count);
  for (float& value : values) value = between(random);
  return values;
}

struct PredictingFile : MadeFile {
  explicit PredictingFile(const Metadata& metadata = predicting_llama()) : MadeFile(metadata) {
    add(read_predictor_spec(*this));
    // Results that are not small beside those of the layers, or all answers would be one token.
    set("output_norm.weight", std::vector<float>(32, 1.0f));
  }
  // Layers add nothing: what follows a token depends on it alone, in the model and, where only the token is joined, in the
  // layer that predicts.
  void make_right() {
    for (const char* layer : {"0", "1", "2", "3", "4"}) {
      clear(std::string("blk.") + layer + ".attn_output.weight");
      clear(std::string("blk.") + layer + ".ffn_down.weight");
    }
    std::vector<float> join(32 * 64);
    for (size_t i = 0; i < 32; ++i) join[i * 64 + i] = 1;
    set("blk.4.nextn.eh_proj.weight", join);
    set("blk.4.nextn.enorm.weight", std::vector<float>(32, 1.0f));
  }
};

// As a model that has no rows of others would be, with the predictor's own weights.
struct PredictingModel : BareModel {
  explicit PredictingModel(const std::shared_ptr<const PredictingFile>& from, const CpuKernels& kernels)
      : BareModel(from, from->spec(), kernels, 2), predictor(load_predictor(from, {}, weights, *own)) {}
  Predictor predictor;
};

TEST(Mtp, ALayerThatPredictsIsNotAmongThoseOfTheModel) {
  const PredictingFile file;
  EXPECT_EQ(file.spec().layers.size(), 4u);
  const ModelSpec spec = read_predictor_spec(file);
  EXPECT_EQ(spec.layers.size(), 1u);
  EXPECT_EQ(spec.first_layer, 4u);
  EXPECT_NE(file.find("blk.4.nextn.eh_proj.weight"), nullptr);
  EXPECT_NE(file.find("blk.4.attn_q.weight"), nullptr);
}

// In double, by the letter: the block adds nothing.
TEST(Mtp, TokensAreJoinedWithWhatWasMadeOfTheOnesBefore) {
  const auto file = std::make_shared<PredictingFile>();
  file->clear("blk.4.attn_output.weight");
  file->clear("blk.4.ffn_down.weight");
  PredictingModel model(file, exact_kernels());
  const KvLayout layout = make_kv_layout(kv_shapes(model.predictor.spec, KvFormat::f32));
  KvCache kv(layout, pages_for(layout, 64, 64, 1));
  Runner runner({&model.predictor.spec, &model.predictor.weights, model.own.get()}, layout,
                kv.pages_per_group());
  PageTable table = kv.make_table();
  const std::vector<TokenId> tokens = {3, 17, 39};
  StepInput input;
  input.add(tokens, 0, StepInput::Logits::all);
  input.hidden = random_values(1, 3 * 32);
  input.report = StepInput::Report::logits;
  input.report_hidden = StepInput::Hidden::all;
  ASSERT_TRUE(kv.reserve(table, 3));
  const PageTable* tables[] = {&table};
  input.tables = kv.flatten(tables);
  input.moves = kv.take_moves();
  const std::vector<float> hidden = input.hidden;
  const StepOutput output = runner.collect(runner.launch(std::move(input)));
  kv.moved(runner.take_made());

  const auto normed = [](std::vector<double> row, const std::vector<double>& weight) {
    const double squares = std::inner_product(row.begin(), row.end(), row.begin(), 0.0);
    for (size_t i = 0; i < row.size(); ++i) row[i] *= weight[i] / std::sqrt(squares / 32 + 1e-5);
    return row;
  };
  const std::vector<double> embedding = file->values("token_embd.weight");
  const std::vector<double> join = file->values("blk.4.nextn.eh_proj.weight");
  for (size_t t = 0; t < 3; ++t) {
    std::vector<double> both =
        normed({embedding.begin() + tokens[t] * 32, embedding.begin() + tokens[t] * 32 + 32},
               file->values("blk.4.nextn.enorm.weight"));
    const std::vector<double> before = normed({hidden.begin() + t * 32, hidden.begin() + t * 32 + 32},
                                              file->values("blk.4.nextn.hnorm.weight"));
    both.insert(both.end(), before.begin(), before.end());
    std::vector<double> joined;
    for (size_t r = 0; r < 32; ++r)
      joined.push_back(std::inner_product(both.begin(), both.end(), join.begin() + ptrdiff_t(r * 64), 0.0));
    joined = normed(joined, file->values("output_norm.weight"));
    for (size_t i = 0; i < 32; ++i) EXPECT_NEAR(output.hidden[t * 32 + i], joined[i], 1e-4);
    for (size_t v = 0; v < 40; ++v) {
      const double logit =
          std::inner_product(joined.begin(), joined.end(), embedding.begin() + ptrdiff_t(v * 32), 0.0);
      EXPECT_NEAR(output.logits_of(t)[v], logit, 1e-3);
    }
  }
  kv.release(table, tokens, 3, KvCache::Reason::finished);
}

// What is told of tokens changes no bit of their logits.
TEST(Mtp, LogitsAreTheSameIfWhatWasMadeOfTokensIsTold) {
  const auto file = std::make_shared<PredictingFile>();
  PredictingModel model(file, kernels_named("auto"));
  const KvLayout layout = make_kv_layout(kv_shapes(model.spec, KvFormat::f32));
  std::vector<float> seen[2];
  for (const auto report : {StepInput::Hidden::none, StepInput::Hidden::all}) {
    KvCache kv(layout, pages_for(layout, 64, 64, 1));
    Runner runner(model.engine_model().runner_model(), layout, kv.pages_per_group());
    PageTable table = kv.make_table();
    StepInput input;
    input.add(std::vector<TokenId>{1, 5, 7, 9, 30}, 0, StepInput::Logits::last);
    input.report = StepInput::Report::logits;
    input.report_hidden = report;
    ASSERT_TRUE(kv.reserve(table, 5));
    const PageTable* tables[] = {&table};
    input.tables = kv.flatten(tables);
    input.moves = kv.take_moves();
    const StepOutput output = runner.collect(runner.launch(std::move(input)));
    kv.moved(runner.take_made());
    seen[size_t(report)] = output.logits;
    EXPECT_EQ(output.hidden.size(), report == StepInput::Hidden::all ? 5u * 32 : 0u);
  }
  EXPECT_EQ(seen[0], seen[1]);
}

TEST(Mtp, AModelWithoutSuchALayerSaysSo) {
  const MadeFile plain(small_llama());
  const auto error = [](const auto& action) -> std::string {
    try {
      action();
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_THAT(error([&] { read_predictor_spec(plain); }), HasSubstr("llama.nextn_predict_layers"));
  Metadata metadata = small_llama();
  metadata.set("llama.nextn_predict_layers", uint64_t(4));
  EXPECT_THAT(error([&] { MadeFile none(metadata); }), HasSubstr("llama.nextn_predict_layers"));
  // Announced, and not there.
  const auto announced = std::make_shared<MadeFile>(predicting_llama());
  BareModel model(announced, announced->spec(), scalar_kernels(), 1);
  EXPECT_THAT(error([&] { load_predictor(announced, {}, model.weights, *model.own); }),
              HasSubstr("blk.4.nextn.eh_proj.weight is missing"));
}

enum class Kind { random, right, latent };

class MtpDrafts : public testing::TestWithParam<Kind> {
 protected:
  MtpDrafts() {
    std::mt19937 random(3);
    for (uint32_t i = 0; i < 30; ++i) {
      Request& request = requests_.emplace_back();
      const uint32_t family = random() % 3, length = 1 + random() % 70;
      for (uint32_t p = 0; p < length; ++p) request.prompt.push_back(3 + (family * 31 + p * 7 + p * p) % 37);
      if (random() % 3 == 0) request.prompt[random() % length] = 3 + random() % 37;
      request.max_tokens = 1 + random() % 20;
      request.sampling = {.temperature = i % 2 == 0 ? 0.0f : 1.0f, .seed = i};
      if (i % 5 == 0) request.sampling.frequency_penalty = 0.3f;
      request.logprobs = true;
    }
  }
  static std::shared_ptr<const PredictingFile> file() {
    const bool latent = GetParam() == Kind::latent;
    auto made = std::make_shared<PredictingFile>(latent ? predicting_deepseek() : predicting_llama());
    if (GetParam() == Kind::right) made->make_right();
    return made;
  }

  struct Setting {
    uint32_t sequences = 6, chunk = 24;
    bool sharing = true, drafts = true, kv_cache = true, late = false;
    size_t kv_bytes = 0;
    uint32_t pipeline = 1;
  };
  std::unique_ptr<Engine> make_engine(const Setting& setting) {
    EngineOptions options{.context = 128, .max_sequences = setting.sequences, .prefill_chunk = setting.chunk};
    options.page_tokens = 8;
    options.kv_cache = setting.kv_cache;
    options.sharing = setting.sharing;
    options.pipeline = setting.pipeline;
    options.kv_bytes = setting.kv_bytes;
    options.draft_tokens = 4;
    options.now = [] { return Clock::time_point(); };  // whether it pays is not known, and it always tries
    EngineModel model = model_.engine_model();
    if (setting.late) model.backend = &late_;
    auto drafter = setting.drafts ? std::make_unique<MtpDrafter>(model_.predictor, model, options) : nullptr;
    return std::make_unique<Engine>(model, options, std::move(drafter));
  }

  using Results = std::vector<std::pair<std::vector<TokenId>, std::vector<float>>>;
  Results answers(const Setting& setting) {
    const auto engine = make_engine(setting);
    std::vector<SequenceId> ids;
    for (const Request& request : requests_) ids.push_back(engine->submit(request));
    while (engine->step()) engine->kv().check_invariants();
    engine->check_invariants();
    EXPECT_EQ(engine->kv().stats().held_pages, 0u);
    preemptions_ = engine->load().preemptions;
    drafted_ = accepted_ = 0;
    Results results;
    for (const SequenceId id : ids) {
      const Answer answer = engine->take_answer(id).value();
      accepted_ += answer.account.accepted;
      drafted_ += answer.account.drafted;
      results.emplace_back(answer.tokens, answer.logprobs);
    }
    return results;
  }

  PredictingModel model_{file(), kernels_named("auto")};
  CpuBackend cpu_{kernels_named("auto"), 2};
  LateBackend late_{cpu_};
  std::vector<Request> requests_;
  uint64_t accepted_ = 0, drafted_ = 0, preemptions_ = 0;
};

TEST_P(MtpDrafts, AnswersAreTheSameWithAndWithoutThem) {
  const Results expected = answers({.sequences = 1, .chunk = 128, .sharing = false, .drafts = false});
  EXPECT_EQ(answers({}), expected);
  EXPECT_GT(drafted_, 50u);
  EXPECT_EQ(answers({.chunk = 5}), expected);
  EXPECT_EQ(answers({.sharing = false}), expected);
  EXPECT_EQ(answers({.pipeline = 2}), expected);
  EXPECT_EQ(answers({.late = true, .pipeline = 2}), expected);
  EXPECT_EQ(answers({.kv_cache = false}), expected);
  const KvLayout layout = make_kv_layout(kv_shapes(model_.spec, KvFormats()), 8);
  const uint32_t room = GetParam() == Kind::latent ? 96 : 110;
  EXPECT_EQ(answers({.kv_bytes = kv_bytes(layout, pages_for(layout, room, 24, 1))}), expected);
  EXPECT_GT(preemptions_, 0u);
}

TEST_P(MtpDrafts, ThoseOfALayerThatIsRightAreAccepted) {
  answers({});
  EXPECT_GT(drafted_, 0u);
  if (GetParam() == Kind::right) {
    EXPECT_GE(accepted_, drafted_ * 9 / 10);  // penalties and the end of an answer cut some
  } else {
    EXPECT_LT(accepted_, drafted_ * 9 / 10);
  }
}

// Nobody has told the drafter of the cached prefix what the model made of it.
TEST_P(MtpDrafts, APromptThatWasCachedIsGuessedToo) {
  const auto engine = make_engine({});
  Request request;
  for (uint32_t p = 0; p < 60; ++p) request.prompt.push_back(3 + p % 37);
  request.sampling.temperature = 0;
  request.max_tokens = 12;
  request.ignore_end = true;
  const Answer first = engine->run(request);
  request.prompt.push_back(9);
  const Answer second = engine->run(request);
  EXPECT_GT(second.account.cached_tokens, 40u);
  EXPECT_GT(second.account.drafted, 0u);
  if (GetParam() == Kind::right) {
    EXPECT_GT(second.account.accepted, 6u);
  }
  const auto plain = make_engine({.drafts = false});
  EXPECT_EQ(plain->run(request).tokens, second.tokens);
}

INSTANTIATE_TEST_SUITE_P(Models, MtpDrafts, testing::Values(Kind::random, Kind::right, Kind::latent),
                         [](const auto& info) {
                           return info.param == Kind::right    ? "right"
                                  : info.param == Kind::latent ? "latent"
                                                               : "random";
                         });

}  // namespace
}  // namespace quire
