// The house model, judged as `quire eval house` does it. The bounds are far below what it reaches: a test that fails
// here says that something broke.
#include <filesystem>
#include <fstream>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "base/error.h"
#include "base/json.h"
#include "eval/evaluator_heads.h"
#include "eval/house_eval.h"
#include "eval/keep_chooser.h"
#include "eval/needle_cases.h"

namespace quire {
namespace {

const std::string kHouse = QUIRE_SOURCE_DIR "/models/house";

class HouseModel : public testing::Test {
 protected:
  LoadedModel model_{kHouse + "/house.gguf", LoadOptions{.threads = 2}};
  HouseData data_ = read_house_data(kHouse + "/eval");
  EngineOptions options_{.context = 4096};
};

TEST_F(HouseModel, AnswersQuestionsAboutATextItWasGiven) {
  HouseEval eval(model_, options_, data_, 24, {});
  EXPECT_GE(eval.reading("new").share(), 0.9);
  EXPECT_EQ(eval.judged().size(), 24u);
}

TEST_F(HouseModel, RecallsAFactAmongOtherTexts) {
  HouseEval eval(model_, options_, data_, 5, {});
  const NeedleTally needles = eval.needles(1024);
  EXPECT_EQ(needles.tokens, 1024u);
  EXPECT_GE(needles.tally.right, 5u);
}

TEST_F(HouseModel, IsAskedToRepeatATextInItsOwnTemplate) {
  const std::vector<TokenId> request = model_.text().repeat_request();
  EXPECT_EQ(model_.text().tokenizer.decode(request, Tokenizer::Special::keep),
            " Say the text again.<|end|><|assistant|>");
}

TEST(RepeatRequest, IsPlainWithoutATemplateAndNothingWithOneThatRefuses) {
  ModelText text = load_model_text(kHouse + "/house.gguf");
  text.chat_template.reset();
  EXPECT_EQ(text.tokenizer.decode(text.repeat_request(), Tokenizer::Special::keep), " Say the text again.");
  text.chat_template.emplace("{{ raise_exception('a system message is wanted') }}", ChatTemplateSpecials{});
  EXPECT_TRUE(text.repeat_request().empty());
}

TEST_F(HouseModel, AnswersMostOfAllFromHalfOfATextThatItWasAskedToRepeat) {
  HouseEval eval(model_, options_, data_, 24, {});
  eval.prune({.policy = PruningPolicy::zip, .share = 0.5, .window = usual_window(PruningPolicy::zip)});
  EXPECT_GE(eval.reading("new").share(), 0.8);
}

TEST_F(HouseModel, RecallsAFactFromHalfOfAPromptBothWaysWithTheHeadsThatItShips) {
  const FoundHeads found = read_evaluator_heads(evaluator_heads_path(kHouse + "/house.gguf"), model_);
  EXPECT_TRUE(found.warning().empty()) << found.warning();
  for (const PruningPolicy policy : {PruningPolicy::evaluator, PruningPolicy::evaluator_prompt}) {
    HouseEval eval(model_, options_, data_, 8, {});
    eval.prune({.policy = policy, .share = 0.5, .evaluator = found.best}, HouseEval::Question::seen);
    EXPECT_EQ(eval.needles(1024).tally.right, 8u) << name(policy);
  }
}

TEST_F(HouseModel, FactsThatAreAskedManyTimesShareTextsAndNoFactIsInBothLists) {
  const NeedleSplit split = split_needle_cases(model_.text(), data_, 8, 9, 600);
  ASSERT_EQ(split.first.size(), 8u);
  ASSERT_EQ(split.second.size(), 9u);
  EXPECT_EQ(split.first[0].text(), split.first[3].text());
  EXPECT_NE(split.first[0].text(), split.first[4].text());
  std::set<std::string> sentences;
  for (const auto* cases : {&split.first, &split.second}) {
    for (const NeedleCase& one : *cases) {
      EXPECT_TRUE(sentences.insert(one.sentence).second);
      EXPECT_EQ(one.before.find(one.sentence), std::string::npos);
      EXPECT_EQ(one.after.find(one.sentence), std::string::npos);
      EXPECT_LE(user_prompt(model_.text(), one.text() + one.asked.question).size(), 600u);
    }
  }
}

// Two formats, two ways: what is chosen depends on the target and on the prompt's end.
class Curve : public HouseModel {
 protected:
  static KvCurve::Point point(const std::string& format, std::optional<PruningPolicy> policy, double share,
                              bool sees_question, KvCurve::Tally kept) {
    const double whole = format == "f16" ? 3584 : 1848;
    return {format, policy, share, sees_question, kept, whole * share};
  }
  KvCurve curve_{.tokens = 1024,
                 .asked = {60, 60},
                 .answered = {50, 40},
                 .points = {point("f16", {}, 1, true, {50, 40}), point("int8", {}, 1, true, {50, 40}),
                            point("int8", PruningPolicy::evaluator, 0.5, true, {50, 40}),
                            point("int8", PruningPolicy::evaluator, 0.3, true, {50, 36}),
                            point("int8", PruningPolicy::zip, 0.5, false, {50, 40})}};

  std::vector<TokenId> prompt(const std::string& end) const {
    std::string text;
    for (uint32_t i = 0; i < 60; ++i) text += "The clerk counted the lamps again. ";
    return model_.text().tokenizer.encode(text + end);
  }
};

TEST_F(Curve, TheSmallestCacheThatKeepsTheAnswersIsChosenByWhatThePromptEndsWith) {
  EXPECT_EQ(smallest_format(curve_, 0.98), "int8");
  const KeepChooser chooser(curve_, {.layer = 6, .heads = {1}}, "int8", model_.text().tokenizer);
  const auto chosen = chooser.choose(prompt("What did the clerk count?"), 0.98);
  ASSERT_TRUE(chosen.pruning);
  EXPECT_EQ(chosen.pruning->policy, PruningPolicy::evaluator);
  EXPECT_EQ(chosen.pruning->share, 0.5);
  EXPECT_EQ(chosen.pruning->evaluator.layer, 6u);
  EXPECT_NEAR(chosen.bytes, 0.5 * 1848 / 3584, 1e-9);
  EXPECT_EQ(chooser.choose(prompt("What did the clerk count?"), 0.9).pruning->share, 0.3)
      << "36 of 40 and 50 of 50";
  EXPECT_EQ(chooser.choose(prompt("Then he slept."), 0.98).pruning->policy, PruningPolicy::zip);
  EXPECT_FALSE(chooser.choose(prompt("Then he slept."), 1.01).pruning) << "nothing keeps that";
  const std::vector<TokenId> brief = model_.text().tokenizer.encode("Who are you?");
  EXPECT_FALSE(chooser.choose(brief, 0.98).pruning) << "it is not worth it";
  EXPECT_NE(chooser.choose(brief, 0.98).words, "");
}

TEST_F(Curve, IsReadAsItWasWrittenAndRefusedIfItIsAnotherModels) {
  const std::string path = testing::TempDir() + "/quire_curve_" + std::to_string(::getpid()) + ".json";
  write_kv_curve(path, curve_, model_);
  const KvCurve read = read_kv_curve(path, model_.file());
  ASSERT_EQ(read.points.size(), curve_.points.size());
  EXPECT_EQ(read.answered.texts, 40u);
  EXPECT_EQ(read.points[3].kept.texts, 36u);
  EXPECT_EQ(read.points[4].policy, PruningPolicy::zip);
  EXPECT_FALSE(read.points[4].sees_question);
  EXPECT_THROW(read_kv_curve(path, *open_model_file(kHouse + "/draft.gguf")), Error);
  std::filesystem::remove(path);
}

TEST_F(HouseModel, ExplainsInference) {
  HouseEval eval(model_, options_, data_, 10, {});
  EXPECT_GE(eval.explanations().right, 6u);  // of 114 topics
}

TEST_F(HouseModel, ReportsHowFarItHasCome) {
  std::vector<std::string> parts;
  size_t last = 0;
  HouseEval eval(model_, options_, data_, 3, [&](std::string_view part, size_t done, size_t of) {
    parts.emplace_back(part);
    EXPECT_LE(done, of);
    last = done;
  });
  eval.reading("unseen");
  EXPECT_EQ(parts.front(), "reading unseen");
  EXPECT_EQ(last, 3u);
}

TEST_F(HouseModel, ScoresStoriesAndRefusesADraftWithOtherTokens) {
  HouseEval eval(model_, options_, data_, 2, {});
  const StoryScore stories = eval.stories();
  EXPECT_GT(stories.tokens, 200u);
  EXPECT_GT(stories.loss, 0.0);
  const Tally itself = eval.draft_agreement(model_);  // its own best tokens are those it chose
  EXPECT_GT(itself.asked, 50u);
  EXPECT_EQ(itself.right, itself.asked);
  const LoadedModel other(QUIRE_SOURCE_DIR "/tests/goldens/llama3", LoadOptions{});
  EXPECT_THROW(eval.draft_agreement(other), Error);
}

TEST(HouseData, SaysWhichLineCannotBeRead) {
  const std::filesystem::path folder = testing::TempDir() + "/quire_house_data_" + std::to_string(::getpid());
  std::filesystem::create_directories(folder);
  for (const char* name : {"reading", "needles", "filler", "inference", "topics", "stories"}) {
    std::filesystem::copy_file(kHouse + "/eval/" + name + ".jsonl", folder / (std::string(name) + ".jsonl"),
                               std::filesystem::copy_options::overwrite_existing);
  }
  std::ofstream(folder / "needles.jsonl")
      << "{\"sentence\": \"s\", \"question\": \"q\", \"answer\": \"a\"}\n{\"sentence\": 7}\n";
  try {
    read_house_data(folder.string());
    FAIL() << "a needle without a question was read";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("needles.jsonl:2"));
  }
  std::filesystem::remove_all(folder);
  EXPECT_THROW(read_house_data(folder.string()), Error);
}

}  // namespace
}  // namespace quire
