#include "model/pooling.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/json.h"
#include "model/hf_config.h"
#include "model/test_folder.h"

namespace quire {
namespace {

using testing::HasSubstr;

// As sentence-transformers keeps what follows a model.
class SentenceFolder {
 public:
  SentenceFolder& module(const std::string& kind, const std::string& path = "") {
    modules_.push_back(
        {{"idx", modules_.size()}, {"path", path}, {"type", "sentence_transformers.models." + kind}});
    return *this;
  }
  SentenceFolder& pooling(const Json& config) {
    std::filesystem::create_directory(folder_.file("1_Pooling"));
    folder_.write("1_Pooling/config.json", config.dump());
    return module("Pooling", "1_Pooling");
  }
  // GGUF's number; 0: nothing is said.
  uint64_t type() {
    if (!modules_.empty()) folder_.write("modules.json", modules_.dump());
    HfConfig config;
    config.family = &kHfFamilies[0];
    add_hf_pooling(folder_.path(), config);
    return config.metadata.maybe_number(std::string(kHfFamilies[0].architecture) + ".pooling_type")
        .value_or(0);
  }
  std::string refusal() {
    return error_of([&] { type(); });
  }

 private:
  TestFolder folder_;
  Json modules_ = Json::array();
};

TEST(Pooling, OfAFolderIsWhatSentenceTransformersKeeps) {
  EXPECT_EQ(SentenceFolder().type(), 0u);
  EXPECT_EQ(SentenceFolder().module("Transformer").module("Normalize").type(), 0u);
  const auto flag = [](const char* name) {
    return Json{{"word_embedding_dimension", 4}, {"pooling_mode_max_tokens", false}, {name, true}};
  };
  EXPECT_EQ(SentenceFolder().pooling(flag("pooling_mode_mean_tokens")).type(), 1u);
  EXPECT_EQ(SentenceFolder().pooling(flag("pooling_mode_cls_token")).type(), 2u);
  EXPECT_EQ(SentenceFolder().module("Transformer").pooling(flag("pooling_mode_lasttoken")).type(), 3u);
  EXPECT_EQ(SentenceFolder().pooling({{"pooling_mode", "lasttoken"}}).type(), 3u);
  EXPECT_EQ(SentenceFolder().module("Transformer").module("LogitScore", "1_LogitScore").type(), 4u);
}

TEST(Pooling, ThatIsNotBuiltIsRefusedByName) {
  EXPECT_THAT(SentenceFolder().pooling({{"pooling_mode_max_tokens", true}}).refusal(),
              HasSubstr("pooling_mode_max_tokens"));
  EXPECT_THAT(SentenceFolder()
                  .pooling({{"pooling_mode_mean_tokens", true}, {"pooling_mode_cls_token", true}})
                  .refusal(),
              HasSubstr("one of mean, cls and lasttoken"));
  EXPECT_THAT(SentenceFolder().pooling({{"pooling_mode", "max"}}).refusal(), HasSubstr("one of mean"));
  EXPECT_THAT(
      SentenceFolder().pooling({{"pooling_mode_lasttoken", true}}).module("Dense", "2_Dense").refusal(),
      HasSubstr("\"Dense\""));
  EXPECT_THAT(SentenceFolder().module("Pooling", "..").refusal(), HasSubstr("out of the folder"));
  EXPECT_THAT(SentenceFolder().module("Pooling", "../x").refusal(), HasSubstr("out of the folder"));
}

TEST(Pooling, HasTheNamesThatUsersGive) {
  for (const Pooling pooling : {Pooling::mean, Pooling::cls, Pooling::last, Pooling::rank})
    EXPECT_EQ(pooling_from_name(name(pooling)), pooling);
  EXPECT_THAT(error_of([] { pooling_from_name("max"); }), HasSubstr("mean, cls, last and rank"));
}

}  // namespace
}  // namespace quire
