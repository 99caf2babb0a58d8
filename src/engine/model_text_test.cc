#include "engine/model_text.h"

#include <functional>
#include <set>

#include <gtest/gtest.h>

#include "base/error.h"
#include "model/gguf_writer.h"
#include "model/synth_vocabulary.h"
#include "model/test_folder.h"

namespace quire {
namespace {

const char* const kUsual = "usual:{{ messages[0].content }}";
const char* const kToolUse = "tools {{ tools | length }}:{{ messages[0].content }}";
const std::vector<std::string> kHarmony = {"<|return|>", "<|call|>", "<|channel|>", "<|end|>",
                                           "<|endoftext|>"};

std::string rendered(const std::optional<ChatTemplate>& chat_template, OrderedJson tools) {
  ChatInput chat;
  chat.messages = OrderedJson::array({{{"role", "user"}, {"content", "Hi"}}});
  chat.tools = std::move(tools);
  return chat_template.value().render(chat).text;
}

class ModelTextTest : public testing::Test {
 protected:
  // A GGUF file without tensors, with special tokens beside the usual ones.
  std::string gguf(const std::vector<std::string>& specials,
                   const std::function<void(Metadata&)>& change = {}) const {
    SynthVocabulary vocabulary = make_synth_vocabulary(std::vector<std::string>{"fox"});
    for (const std::string& special : specials) {
      vocabulary.tokens.push_back(special);
      vocabulary.types.push_back(3);  // control
    }
    Metadata metadata;
    metadata.set("general.architecture", std::string("llama"));
    set_vocabulary(vocabulary, metadata);
    if (change) change(metadata);
    const std::string path = folder_.file("vocabulary.gguf");
    GgufWriter(path, metadata, {}).finish();
    return path;
  }
  // A folder without weights, with such a vocabulary.
  std::string folder(const std::vector<std::string>& specials, const Json& config) const {
    Json tokenizer = {
        {"model", {{"type", "BPE"}, {"vocab", {{"a", 0}, {"b", 1}}}, {"merges", Json::array()}}},
        {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
        {"decoder", {{"type", "ByteLevel"}}},
        {"added_tokens", Json::array()}};
    for (const std::string& special : specials) {
      tokenizer["added_tokens"].push_back({{"id", 2 + tokenizer["added_tokens"].size()},
                                           {"content", special},
                                           {"special", true},
                                           {"single_word", false},
                                           {"lstrip", false},
                                           {"rstrip", false},
                                           {"normalized", false}});
    }
    folder_.write("tokenizer.json", tokenizer.dump());
    folder_.write("tokenizer_config.json", config.dump());
    return folder_.path();
  }
  static std::set<std::string> ends(const ModelText& text) {
    std::set<std::string> ends;
    for (const TokenId token : text.end_tokens) ends.emplace(text.tokenizer.token(token));
    return ends;
  }

  TestFolder folder_;
};

TEST_F(ModelTextTest, WhatClosesAMessageOfGptOssDoesNotEndItsAnswer) {
  const std::set<std::string> expected = {"<|return|>", "<|call|>", "<|endoftext|>"};
  EXPECT_EQ(ends(load_model_text(folder(kHarmony, {{"eos_token", "<|return|>"}}))), expected);
  const ModelText text = load_model_text(gguf(kHarmony, [](Metadata& metadata) {
    metadata.set("tokenizer.ggml.eos_token_id",
                 metadata.texts("tokenizer.ggml.tokens").size() - kHarmony.size());
  }));
  EXPECT_EQ(ends(text), expected);
}

TEST_F(ModelTextTest, NorDoesItWhereAFileSaysSo) {
  const ModelText text = load_model_text(gguf(kHarmony, [](Metadata& metadata) {
    const uint64_t first = metadata.texts("tokenizer.ggml.tokens").size() - kHarmony.size();
    metadata.set("tokenizer.ggml.eos_token_id", first);
    metadata.set("tokenizer.ggml.eot_token_id", first + 3);  // <|end|>
  }));
  EXPECT_FALSE(ends(text).contains("<|end|>"));
  EXPECT_TRUE(ends(text).contains("<|return|>"));
}

TEST_F(ModelTextTest, TheSameTokenEndsTheAnswersOfOtherModels) {
  const std::vector<std::string> phi = {"<|end|>", "<|endoftext|>"};
  EXPECT_EQ(ends(load_model_text(folder(phi, {{"eos_token", "<|endoftext|>"}}))),
            (std::set<std::string>{"<|end|>", "<|endoftext|>"}));
  EXPECT_TRUE(ends(load_model_text(gguf(phi))).contains("<|end|>"));
}

TEST_F(ModelTextTest, OfAListInAFolderTheOneForToolsIsTakenIfToolsAreGiven) {
  const Json config = {{"chat_template",
                        {{{"name", "rag"}, {"template", "rag"}},
                         {{"name", "tool_use"}, {"template", kToolUse}},
                         {{"name", "default"}, {"template", kUsual}}}}};
  const ModelText text = load_model_text(folder({"</s>"}, config));
  const auto alone = load_chat_template(folder_.path());
  for (const auto* chat_template : {&text.chat_template, &alone}) {
    EXPECT_EQ(rendered(*chat_template, nullptr), "usual:Hi");
    EXPECT_EQ(rendered(*chat_template, {{{"type", "function"}}}), "tools 1:Hi");
    EXPECT_EQ(rendered(*chat_template, OrderedJson::array()), "tools 0:Hi");
  }
}

TEST_F(ModelTextTest, AListWithoutOneForToolsTakesTheDefault) {
  const Json config = {{"chat_template", {{{"name", "default"}, {"template", kUsual}}}}};
  EXPECT_EQ(rendered(load_model_text(folder({"</s>"}, config)).chat_template, {{{"type", "function"}}}),
            "usual:Hi");
}

TEST_F(ModelTextTest, AListWithoutADefaultRendersConversationsWithToolsOnly) {
  const Json config = {{"chat_template", {{{"name", "tool_use"}, {"template", kToolUse}}}}};
  const ModelText text = load_model_text(folder({"</s>"}, config));
  EXPECT_EQ(rendered(text.chat_template, OrderedJson::array()), "tools 0:Hi");
  EXPECT_THROW(rendered(text.chat_template, nullptr), Error);
}

TEST_F(ModelTextTest, TemplatesMayBeFilesOfTheirOwn) {
  folder({"</s>"}, {{"chat_template", "not this"}});
  folder_.write("chat_template.jinja", kUsual);
  std::filesystem::create_directory(folder_.file("additional_chat_templates"));
  folder_.write("additional_chat_templates/tool_use.jinja", kToolUse);
  const auto chat_template = load_chat_template(folder_.path());
  EXPECT_EQ(rendered(chat_template, nullptr), "usual:Hi");
  EXPECT_EQ(rendered(chat_template, OrderedJson::array()), "tools 0:Hi");
}

TEST_F(ModelTextTest, OfSeveralInAGgufFileTheOneForToolsIsTakenIfToolsAreGiven) {
  const std::string path = gguf({}, [](Metadata& metadata) {
    metadata.set("tokenizer.chat_template", std::string(kUsual));
    metadata.set("tokenizer.chat_templates", std::vector<std::string>{"tool_use"});
    metadata.set("tokenizer.chat_template.tool_use", std::string(kToolUse));
  });
  const ModelText text = load_model_text(path);
  EXPECT_EQ(rendered(text.chat_template, nullptr), "usual:Hi");
  EXPECT_EQ(rendered(text.chat_template, {{{"type", "function"}}}), "tools 1:Hi");
}

TEST_F(ModelTextTest, BothTemplatesAreWrittenIntoAGgufFile) {
  ModelText text = load_model_text(gguf({}));
  text.template_sources = {.usual = kUsual, .tool_use = kToolUse};
  Metadata written;
  add_text_metadata(text, written);
  EXPECT_EQ(written.text("tokenizer.chat_template"), kUsual);
  EXPECT_EQ(written.text("tokenizer.chat_template.tool_use"), kToolUse);
  EXPECT_EQ(written.texts("tokenizer.chat_templates"), std::vector<std::string>{"tool_use"});
}

}  // namespace
}  // namespace quire
