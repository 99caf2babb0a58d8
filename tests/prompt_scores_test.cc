// What is told of a prompt token by token: the same bits as the loss of the text has, however it is computed.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "backend/cpu/kernel_choice.h"
#include "engine/drafts/suffix_drafter.h"
#include "engine/engine.h"
#include "engine/text_loss.h"
#include "golden_model.h"
#include "late_backend.h"

namespace quire {
namespace {

using Scores = std::vector<std::pair<TokenId, double>>;

class PromptScores : public testing::TestWithParam<const char*> {
 protected:
  struct Setting {
    uint32_t chunk = 512;
    uint32_t sequences = 8;
    uint32_t pool_tokens = 0;  // 0: enough
    bool company = false, cached = false, late = false, drafts = false;
  };

  static Request scored(const std::vector<TokenId>& prompt, Scores& scores) {
    Request request = plain(prompt);
    request.on_prompt_score = [&scores](const PromptScore& score) {
      EXPECT_EQ(score.position, scores.size() + 1) << "each once, in their order";
      scores.emplace_back(score.token, score.loss);
    };
    return request;
  }
  // The first of which they say different things; nothing: there is none.
  static std::string difference(const Scores& told, const Scores& expected) {
    if (told.size() != expected.size()) return fmt::format("{} instead of {}", told.size(), expected.size());
    for (size_t i = 0; i < told.size(); ++i) {
      if (told[i] != expected[i])
        return fmt::format("at {}: token {} has {} instead of token {} with {}", i + 1, told[i].first,
                           told[i].second, expected[i].first, expected[i].second);
    }
    return "";
  }
  static Request plain(const std::vector<TokenId>& prompt) {
    Request request;
    request.prompt = prompt;
    request.sampling.temperature = 0;
    request.max_tokens = 6;
    return request;
  }
  std::vector<TokenId> text(uint32_t salt, uint32_t size) const {
    std::vector<TokenId> tokens;
    for (uint32_t i = 0; i < size; ++i) tokens.push_back((salt * 31 + i * i * 7 + i % 5) % model_.spec.vocab);
    return tokens;
  }

  // Of the prompt, and of another that is scored beside it where there is company.
  std::pair<Scores, Scores> scores(const Setting& setting) {
    EngineOptions options{.context = 128, .max_sequences = setting.sequences, .prefill_chunk = setting.chunk};
    options.pipeline = setting.late ? 2 : 1;
    if (setting.pool_tokens > 0) {
      const KvLayout layout = make_kv_layout(kv_shapes(model_.spec, options.kv_formats), options.page_tokens);
      options.kv_bytes = kv_bytes(layout, pages_for(layout, setting.pool_tokens, setting.chunk, 1));
    }
    EngineModel model = model_.engine_model();
    if (setting.late) model.backend = &late_;
    Engine engine(model, options, setting.drafts ? std::make_unique<SuffixDrafter>() : nullptr);
    if (setting.cached) engine.run(plain(prompt_));
    std::pair<Scores, Scores> told;
    if (setting.company) {
      for (uint32_t i = 0; i < 5; ++i) engine.submit(plain(text(i, 11 + 9 * i)));
      engine.submit(scored(other_, told.second));
      engine.submit(plain(prompt_));
    }
    engine.submit(scored(prompt_, told.first));
    while (engine.step()) {
    }
    return told;
  }
  Scores expected(const std::vector<TokenId>& tokens) {
    const std::vector<double> of_text =
        losses(model_.engine_model(), tokens, {.prefill_chunk = 7, .kv_formats = EngineOptions().kv_formats});
    Scores scores;
    for (size_t i = 1; i < tokens.size(); ++i) scores.emplace_back(tokens[i], of_text[i - 1]);
    return scores;
  }

  BareModel model_{golden_folder(GetParam()), kernels_named("auto"), 2};
  LateBackend late_{model_.backend};
  const std::vector<TokenId> prompt_ = text(9, 100), other_ = text(4, 77);
};

TEST_P(PromptScores, AreTheBitsOfTheTextsLossHoweverTheyAreComputed) {
  const Scores first = expected(prompt_), second = expected(other_);
  ASSERT_EQ(first.size(), prompt_.size() - 1);
  for (const Setting& setting :
       {Setting{}, Setting{.chunk = 5}, Setting{.cached = true}, Setting{.company = true},
        Setting{.chunk = 9, .company = true, .cached = true, .drafts = true},
        Setting{.chunk = 16, .company = true, .late = true}, Setting{.pool_tokens = 130, .company = true}}) {
    const auto [told, beside] = scores(setting);
    EXPECT_EQ(difference(told, first), "") << "chunk " << setting.chunk;
    if (setting.company) {
      EXPECT_EQ(difference(beside, second), "") << "chunk " << setting.chunk;
    }
  }
}

TEST_P(PromptScores, AreToldOfTheShortestPromptsToo) {
  for (const uint32_t size : {1u, 2u}) {
    Scores told;
    Engine engine(model_.engine_model(), {.context = 128, .max_sequences = 2});
    engine.submit(scored(text(3, size), told));
    while (engine.step()) {
    }
    EXPECT_EQ(told.size(), size - 1);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, PromptScores, testing::Values("llama3", "gemma3", "qwen3_5"),
                         [](const auto& info) { return parameter_name(info.param); });

}  // namespace
}  // namespace quire
