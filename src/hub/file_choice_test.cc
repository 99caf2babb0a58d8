#include "hub/file_choice.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace quire {
namespace {

constexpr uint64_t kGB = 1'000'000'000;

std::vector<StoredModel> models_of(std::initializer_list<std::pair<const char*, double>> files) {
  std::vector<RepoFile> list;
  for (const auto& [path, gigabytes] : files)
    list.push_back({.path = path, .bytes = uint64_t(gigabytes * kGB), .digest = std::string(64, 'a')});
  return models_in(list);
}

std::string chosen(const std::vector<StoredModel>& models, const std::string& which, double memory_gb) {
  return choose_model(models, which, uint64_t(memory_gb * kGB), "org/name").model.name();
}

std::string refusal(const std::vector<StoredModel>& models, const std::string& which, double memory_gb) {
  try {
    return "chose " + chosen(models, which, memory_gb);
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(FileChoice, ReadsTheTypeInAFilesName) {
  const std::pair<const char*, const char*> cases[] = {{"Llama-3.2-1B-Instruct-Q4_K_M.gguf", "Q4_K_M"},
                                                       {"model.q8_0.gguf", "Q8_0"},
                                                       {"m-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"},
                                                       {"m-IQ4_XS.gguf", "IQ4_XS"},
                                                       {"m_f16.gguf", "F16"},
                                                       {"m-BF16.gguf", "BF16"},
                                                       {"gpt-oss-20b-mxfp4.gguf", "MXFP4"},
                                                       {"Q4_0-tool-Q6_K.gguf", "Q6_K"},
                                                       {"BF16/model-00001-of-00001.gguf", "BF16"}};
  for (const auto& [path, label] : cases) EXPECT_EQ(models_of({{path, 1}}).at(0).label, label) << path;
  EXPECT_EQ(models_of({{"m-Q4_0_4_4.gguf", 1}}).at(0).name(), "m-Q4_0_4_4.gguf");
}

TEST(FileChoice, TakesTheUsualTypeThatFits) {
  const auto models = models_of({{"m-BF16.gguf", 16},
                                 {"m-Q8_0.gguf", 8.5},
                                 {"m-Q4_K_M.gguf", 4.9},
                                 {"m-Q3_K_M.gguf", 4},
                                 {"m-IQ2_M.gguf", 2.9},
                                 {"mmproj-F16.gguf", 0.1},
                                 {"imatrix.gguf", 0.1}});
  EXPECT_EQ(models.size(), 5u);
  EXPECT_EQ(chosen(models, "", 64), "Q4_K_M");
  EXPECT_EQ(chosen(models, "", 5), "Q3_K_M");
  EXPECT_EQ(chosen(models, "", 4), "IQ2_M");
  EXPECT_EQ(chosen(models, "", 0), "Q4_K_M");  // a machine that does not say
  EXPECT_EQ(chosen(models, "bf16", 4), "BF16");
  EXPECT_EQ(choose_model(models, "", 5 * kGB, "org/name").why.substr(0, 76),
            "Q3_K_M, 4.0 GB, because Q4_K_M with 4.9 GB does not fit into this machine's ");
  EXPECT_EQ(refusal(models, "", 1),
            "nothing of org/name fits into this machine's 1.0 GB of memory; the smallest is IQ2_M with 2.9 "
            "GB. To fetch it "
            "all the same, name it: org/name:IQ2_M");
  EXPECT_NE(refusal(models, "Q5_K_M", 64).find("org/name has no Q5_K_M; it has Q4_K_M (4.9 GB), "),
            std::string::npos);
}

TEST(FileChoice, TakesSplitFilesWholeOrNotAtAll) {
  const auto models = models_of({{"m-Q4_K_M-00002-of-00002.gguf", 2},
                                 {"m-Q4_K_M-00001-of-00002.gguf", 3},
                                 {"m-Q8_0-00001-of-00003.gguf", 3},
                                 {"m-Q8_0-00003-of-00003.gguf", 3},
                                 {"m-Q6_K-00000-of-00000.gguf", 3},
                                 {"m-Q5_0-99999-of-99999.gguf", 3}});
  ASSERT_EQ(models.size(), 1u);
  EXPECT_EQ(models[0].bytes(), 5 * kGB);
  EXPECT_EQ(models[0].files[0].path, "m-Q4_K_M-00001-of-00002.gguf");
}

TEST(FileChoice, AsksForAFilesNameWhereATypeIsNotEnough) {
  const auto models = models_of({{"a-Q4_0.gguf", 1}, {"b-Q4_0.gguf", 1}});
  EXPECT_EQ(
      refusal(models, "Q4_0", 64),
      "org/name has several of Q4_0: a-Q4_0.gguf, b-Q4_0.gguf; write one of these names after the colon");
  EXPECT_EQ(choose_model(models, "b-Q4_0.gguf", 0, "").model.files[0].path, "b-Q4_0.gguf");
  EXPECT_EQ(chosen(models_of({{"a-UD-Q4_0.gguf", 1}}), "q4_0", 64), "UD-Q4_0");
}

TEST(FileChoice, TakesAFolderWhereThereIsNoGguf) {
  const auto folder = models_of({{"config.json", 0},
                                 {"tokenizer.json", 0},
                                 {"model.safetensors", 2},
                                 {"other.safetensors", 2},
                                 {"consolidated.safetensors", 2},
                                 {"vae/model.safetensors", 2},
                                 {"pytorch_model.bin", 2}});
  ASSERT_EQ(folder.size(), 1u);
  EXPECT_TRUE(folder[0].folder);
  EXPECT_EQ(folder[0].files.size(), 3u);
  const auto both = models_of({{"config.json", 0}, {"model.safetensors", 2}, {"m-Q8_0.gguf", 1}});
  EXPECT_EQ(chosen(both, "", 64), "Q8_0");
  EXPECT_EQ(chosen(both, "safetensors", 64), "safetensors");
  EXPECT_TRUE(models_of({{"model.safetensors", 2}}).empty());
  EXPECT_EQ(refusal(models_of({{"README.md", 0}}), "", 64),
            "org/name has nothing that quire reads: neither GGUF files nor config.json with *.safetensors");
}

}  // namespace
}  // namespace quire
