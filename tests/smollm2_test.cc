// A real model: SmolLM2-135M-Instruct in Q4_1, fetched by `make smollm2`. What is expected here is what llama.cpp does
// with the same file. The two questions are among those on which both agree to the end; tools/check_llama_cpp.py asks
// ten, and not all of them do.
#include <filesystem>

#include <gtest/gtest.h>

#include "engine/engine.h"
#include "engine/loaded_model.h"

namespace quire {
namespace {

const char* const kModel = QUIRE_SOURCE_DIR "/models/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";

class SmolLm2 : public testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(kModel)) GTEST_SKIP() << "the model is not here; `make smollm2` fetches it";
    model_ = std::make_unique<LoadedModel>(kModel, LoadOptions{.context = 512, .threads = 2});
  }

  std::vector<TokenId> chat(const std::string& question) const {
    ChatInput input;
    input.messages = OrderedJson::array({{{"role", "user"}, {"content", question}}});
    return model_->text().encode_chat(input);
  }
  std::vector<TokenId> answer(const std::string& question, EngineOptions options) const {
    options.context = 512;
    options.kv_formats = KvFormat::f32;
    Engine engine(model_->engine_model(), options);
    Request request;
    request.prompt = chat(question);
    request.sampling.temperature = 0;
    request.max_tokens = 24;
    return engine.run(request).tokens;
  }

  std::unique_ptr<LoadedModel> model_;
};

TEST_F(SmolLm2, ReadsItsOwnChatTemplateAndTokenizer) {
  EXPECT_EQ(
      chat("What is the capital of France?"),
      (std::vector<TokenId>{1,   9690, 198, 2683, 359,   253,  5356, 5646, 11173, 3365, 3511, 308,  34519,
                            28,  7018, 411, 407,  19712, 8182, 2,    198,  1,     4093, 198,  1780, 314,
                            260, 3575, 282, 4649, 47,    2,    198,  1,    520,   9531, 198}));
}

TEST_F(SmolLm2, GivesTheAnswersOfLlamaCpp) {
  EXPECT_EQ(answer("What is 17 plus 25?", {}),
            (std::vector<TokenId>{33, 39, 1232, 216, 34, 37, 446, 216, 35, 34, 30, 2}));
  EXPECT_EQ(
      answer("List three fruits that are yellow.", {}),
      (std::vector<TokenId>{33, 30, 12619, 12310, 198, 34, 30, 1816, 5120, 198, 35, 30, 37756, 11895, 2}));
}

TEST_F(SmolLm2, AnswersTheSameWithoutTheCacheAndInSmallChunks) {
  const std::vector<TokenId> expected = answer("What is 17 plus 25?", {});
  EngineOptions no_cache;
  no_cache.kv_cache = false;
  EXPECT_EQ(answer("What is 17 plus 25?", no_cache), expected);
  EngineOptions chunked;
  chunked.prefill_chunk = 5;
  EXPECT_EQ(answer("What is 17 plus 25?", chunked), expected);
}

}  // namespace
}  // namespace quire
