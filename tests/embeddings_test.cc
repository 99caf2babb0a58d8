// Texts as vectors: those of Transformers, and the same bits however they are computed.
#include <cmath>
#include <cstring>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "backend/cpu/kernel_choice.h"
#include "base/error.h"
#include "base/json.h"
#include "engine/drafts/suffix_drafter.h"
#include "engine/engine.h"
#include "engine/loaded_model.h"
#include "engine/pooled_rows.h"
#include "golden_model.h"
#include "late_backend.h"
#include "split_case.h"

namespace quire {
namespace {

using Vectors = std::vector<std::vector<float>>;

Request to_vector(const std::vector<TokenId>& prompt, Pooling pooling, std::vector<float>& vector) {
  Request request;
  request.prompt = prompt;
  request.embedding = {.pooling = pooling, .on_vector = [&vector](std::vector<float> made) {
                         EXPECT_TRUE(vector.empty()) << "it is told once";
                         vector = std::move(made);
                       }};
  return request;
}

Request continuation(const std::vector<TokenId>& prompt, uint32_t tokens = 6) {
  Request request;
  request.prompt = prompt;
  request.sampling.temperature = 0;
  request.max_tokens = tokens;
  return request;
}

void run_all(Engine& engine) {
  while (engine.step()) engine.check_invariants();
  EXPECT_EQ(engine.kv().stats().held_pages, 0u);
  engine.kv().check_invariants();
}

bool equal_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && !a.empty() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

class Embeddings : public testing::TestWithParam<const char*> {
 protected:
  struct Setting {
    uint32_t chunk = 512;
    uint32_t sequences = 8;
    uint32_t pool_tokens = 0;  // 0: enough
    bool company = false, cached = false, late = false, drafts = false, kv_cache = true;
    Placement placement = {};
  };

  std::vector<TokenId> text(uint32_t salt, uint32_t size) const {
    std::vector<TokenId> tokens;
    for (uint32_t i = 0; i < size; ++i) tokens.push_back((salt * 31 + i * i * 7 + i % 5) % model_.spec.vocab);
    return tokens;
  }
  // Of three texts, two of which begin alike.
  std::vector<std::vector<TokenId>> texts() const {
    std::vector<TokenId> branch = text(9, 70);
    branch.push_back(5);
    branch.push_back(17);
    return {text(9, 100), branch, text(4, 1)};
  }

  Vectors vectors(const Setting& setting, Pooling pooling) {
    EngineOptions options{.context = 128, .max_sequences = setting.sequences, .prefill_chunk = setting.chunk};
    options.pipeline = setting.late ? 2 : 1;
    options.kv_cache = setting.kv_cache;
    if (setting.pool_tokens > 0) {
      const KvLayout layout = make_kv_layout(kv_shapes(model_.spec, options.kv_formats), options.page_tokens);
      options.kv_bytes = kv_bytes(layout, pages_for(layout, setting.pool_tokens, setting.chunk, 1));
    }
    EngineModel model = model_.engine_model();
    if (setting.late) model.backend = &late_;
    Engine engine(model, options, setting.drafts ? std::make_unique<SuffixDrafter>() : nullptr);
    const auto prompts = texts();
    if (setting.cached) {
      for (const auto& prompt : prompts) engine.run(continuation(prompt));
    }
    Vectors made(prompts.size());
    for (size_t i = 0; i < prompts.size(); ++i) {
      if (setting.company) engine.submit(continuation(text(uint32_t(i), 11 + 29 * uint32_t(i))));
      if (setting.company) engine.submit(continuation(prompts[i], 12));
      engine.submit(to_vector(prompts[i], pooling, made[i]));
    }
    run_all(engine);
    return made;
  }

  BareModel model_{golden_folder(GetParam()), kernels_named("auto"), 2};
  LateBackend late_{model_.backend};
};

TEST_P(Embeddings, HaveTheSameBitsHoweverTheyAreComputed) {
  for (const Pooling pooling : {Pooling::last, Pooling::mean, Pooling::cls}) {
    const Vectors expected = vectors({}, pooling);
    for (const Setting& setting :
         {Setting{.chunk = 5}, Setting{.chunk = 33, .sequences = 1}, Setting{.cached = true},
          Setting{.company = true}, Setting{.chunk = 9, .company = true, .cached = true, .drafts = true},
          Setting{.chunk = 16, .company = true, .late = true}, Setting{.pool_tokens = 130, .company = true},
          Setting{.company = true, .kv_cache = false}}) {
      const Vectors made = vectors(setting, pooling);
      for (size_t i = 0; i < expected.size(); ++i)
        EXPECT_TRUE(equal_bits(made[i], expected[i]))
            << name(pooling) << " of text " << i << ", chunk " << setting.chunk;
    }
  }
}

TEST_P(Embeddings, LeaveTheAnswersBesideThemAsTheyAre) {
  const auto answer = [&](bool company) {
    Engine engine(model_.engine_model(), {.context = 128, .max_sequences = 4, .prefill_chunk = 16});
    const SequenceId id = engine.submit(continuation(text(2, 40), 20));
    Vectors made(2);
    if (company) {
      engine.submit(to_vector(text(3, 90), Pooling::mean, made[0]));
      engine.submit(to_vector(text(5, 90), Pooling::last, made[1]));
    }
    run_all(engine);
    return engine.take_answer(id)->tokens;
  };
  EXPECT_EQ(answer(true), answer(false));
}

INSTANTIATE_TEST_SUITE_P(Models, Embeddings, testing::Values("qwen3", "gemma3", "qwen3_5", "granite"),
                         [](const auto& info) { return parameter_name(info.param); });

class EmbeddingsOfOneModel : public testing::Test {
 protected:
  static std::vector<TokenId> counted(uint32_t size) {
    std::vector<TokenId> tokens;
    for (uint32_t i = 0; i < size; ++i) tokens.push_back(3 + i * 11 % 90);
    return tokens;
  }
  BareModel model_{golden_folder("qwen3"), exact_kernels(), 2};
};

TEST_F(EmbeddingsOfOneModel, TakeTheirBeginningFromTheCacheIfTheLastTokenIsAllTheyNeed) {
  for (const Pooling pooling : {Pooling::last, Pooling::mean}) {
    Engine engine(model_.engine_model(), {.context = 128, .max_sequences = 2});
    std::vector<float> first, second;
    engine.submit(to_vector(counted(100), pooling, first));
    run_all(engine);
    const SequenceId again = engine.submit(to_vector(counted(100), pooling, second));
    run_all(engine);
    const Answer answer = engine.take_answer(again).value();
    EXPECT_EQ(answer.account.cached_tokens, pooling == Pooling::last ? 99u : 0u);
    EXPECT_TRUE(answer.tokens.empty());
    EXPECT_EQ(answer.finish_reason, FinishReason::stop);
    EXPECT_TRUE(equal_bits(first, second));
  }
}

TEST_F(EmbeddingsOfOneModel, OfAnotherSaltShareNothing) {
  Engine engine(model_.engine_model(), {.context = 128, .max_sequences = 2});
  std::vector<float> mine, theirs;
  engine.submit(to_vector(counted(100), Pooling::last, mine));
  run_all(engine);
  Request other = to_vector(counted(100), Pooling::last, theirs);
  other.salt.key = 1;
  const SequenceId id = engine.submit(other);
  run_all(engine);
  EXPECT_EQ(engine.take_answer(id)->account.cached_tokens, 0u);
  EXPECT_TRUE(equal_bits(mine, theirs));
}

TEST_F(EmbeddingsOfOneModel, CanBeCancelledHalfway) {
  Engine engine(model_.engine_model(), {.context = 128, .max_sequences = 2, .prefill_chunk = 10});
  std::vector<float> vector;
  const SequenceId id = engine.submit(to_vector(counted(100), Pooling::mean, vector));
  engine.step();
  engine.step();
  engine.cancel(id);
  run_all(engine);
  EXPECT_TRUE(vector.empty());
}

TEST_F(EmbeddingsOfOneModel, MayFillTheContextAndNoMore) {
  Engine engine(model_.engine_model(), {.context = 64});
  std::vector<float> vector;
  engine.submit(to_vector(counted(64), Pooling::last, vector));
  run_all(engine);
  EXPECT_EQ(vector.size(), model_.spec.dim);
  EXPECT_THROW(engine.submit(to_vector(counted(65), Pooling::last, vector)), Error);
  EXPECT_THROW(engine.submit(to_vector(counted(5), Pooling::rank, vector)), Error);
}

// What its listener throws ends it, and nobody else.
TEST_F(EmbeddingsOfOneModel, ThatNobodyCanBeToldOfFail) {
  Engine engine(model_.engine_model(), {.context = 64, .max_sequences = 2});
  Request request;
  request.prompt = counted(9);
  request.embedding = {.pooling = Pooling::last,
                       .on_vector = [](std::vector<float>) { throw std::bad_alloc(); }};
  const SequenceId id = engine.submit(request);
  std::vector<float> vector;
  engine.submit(to_vector(counted(9), Pooling::last, vector));
  run_all(engine);
  EXPECT_EQ(engine.take_answer(id)->finish_reason, FinishReason::failed);
  EXPECT_FALSE(vector.empty());
}

// The last layers are the CPU's, the norm after them is the device's.
TEST(EmbeddingsOfASplitModel, HaveTheSameBits) {
  std::vector<float> whole, split;
  {
    BareModel model(golden_folder("qwen3"), exact_kernels(), 2);
    Engine engine(model.engine_model(), {.context = 64});
    engine.submit(to_vector({5, 9, 70, 33, 4}, Pooling::last, whole));
    run_all(engine);
  }
  BareModel model(golden_folder("qwen3"), split_of_cpus(exact_kernels(), 2, CpuDevice::late),
                  {.device_layers = 1});
  Engine engine(model.engine_model(), {.context = 64});
  engine.submit(to_vector({5, 9, 70, 33, 4}, Pooling::last, split));
  run_all(engine);
  EXPECT_TRUE(equal_bits(split, whole));
}

double cosine_of(const std::vector<float>& a, const std::vector<float>& b) {
  double product = 0;
  for (size_t i = 0; i < a.size(); ++i) product += double(a[i]) * double(b[i]);
  return product;
}

class EmbeddingGolden : public testing::Test {
 protected:
  static std::string folder() { return QUIRE_SOURCE_DIR "/tests/embeddings/qwen3"; }
  static Json expected() { return read_json_file(folder() + "/expected.json"); }
  // The smallest cosine of what is made of all texts and what Transformers makes of them.
  static double least_cosine(const LoadedModel& model, Pooling pooling) {
    Engine engine(model.engine_model(), {.context = 128, .max_sequences = 4});
    const Json texts = expected();
    EXPECT_GE(texts.size(), 7u);
    Vectors made(texts.size());
    for (size_t i = 0; i < texts.size(); ++i) {
      const std::vector<TokenId> tokens = model.text().tokenizer.encode(texts[i]["text"].get<std::string>());
      EXPECT_EQ(tokens, texts[i]["tokens"].get<std::vector<TokenId>>()) << "with an end token behind it";
      engine.submit(to_vector(tokens, pooling, made[i]));
    }
    run_all(engine);
    double least = 1;
    for (size_t i = 0; i < texts.size(); ++i) {
      const auto wanted = texts[i][std::string(name(pooling))].get<std::vector<float>>();
      const std::vector<float> vector = as_unit(made[i]);
      EXPECT_EQ(vector.size(), wanted.size());
      EXPECT_NEAR(cosine_of(vector, vector), 1, 1e-6);
      least = std::min(least, cosine_of(vector, wanted));
    }
    return least;
  }
};

TEST_F(EmbeddingGolden, VectorsAreThoseOfTransformers) {
  const LoadedModel exact(folder(), {.threads = 2, .kernels = "exact", .device = "cpu"});
  const LoadedModel fast(folder(), {.threads = 2, .kernels = "auto", .device = "cpu"});
  for (const Pooling pooling : {Pooling::last, Pooling::mean, Pooling::cls}) {
    EXPECT_GE(least_cosine(exact, pooling), 0.99999) << name(pooling);
    EXPECT_GE(least_cosine(fast, pooling), 0.999) << name(pooling);
  }
}

TEST_F(EmbeddingGolden, TheFolderSaysHowItsTokensArePooled) {
  EXPECT_EQ(said_pooling(*open_model_file(folder())), Pooling::last);
  EXPECT_EQ(said_pooling(*open_model_file(golden_folder("qwen3"))), std::nullopt);
}

}  // namespace
}  // namespace quire
