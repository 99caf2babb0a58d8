// What can be watched while an answer comes: likeliest tokens, places of candidates, drafts, turns.

#include <cmath>

#include "cli_fixture.h"

namespace quire {
namespace {

class Watch : public Cli {
 protected:
  Json run(const std::string& options) const {
    return quire_json("run --json --seed 3 -n 40 " + options + " 'Tell me a story.'");
  }
};

TEST_F(Watch, WatchingChangesNoToken) {
  const Json plain = run("");
  EXPECT_EQ(plain.count("steps"), 0);
  for (const char* options : {"--top 5", "--candidates the,a", "--draft lookup --show-drafts --top 2"})
    EXPECT_EQ(run(options)["token_ids"], plain["token_ids"]) << options;
}

TEST_F(Watch, TopTokensAreInOrderAndTheirLikelihoodsArePartOfOne) {
  const Json answer = run("--top 4");
  ASSERT_EQ(answer["steps"].size(), answer["token_ids"].size());
  for (size_t i = 0; i < answer["steps"].size(); ++i) {
    const Json& step = answer["steps"][i];
    EXPECT_EQ(step["token"], answer["token_ids"][i]);
    ASSERT_EQ(step["top"].size(), 4);
    double sum = 0, before = 1;
    for (const Json& entry : step["top"]) {
      EXPECT_LE(entry["probability"].get<double>(), before);
      sum += before = entry["probability"];
    }
    EXPECT_LE(sum, 1 + 1e-5);
    EXPECT_LE(step["probability"].get<double>(), step["top"][0]["probability"].get<double>());
  }
}

TEST_F(Watch, ACandidateHasTheRankThatItHasAmongAllTokens) {
  const Json answer = run("--top 1000 --candidates the");
  for (const Json& step : answer["steps"]) {
    ASSERT_FALSE(step["candidates"].empty());
    for (const Json& candidate : step["candidates"]) {
      const size_t rank = candidate["rank"];
      ASSERT_GE(rank, 1);
      if (rank > step["top"].size()) continue;
      EXPECT_EQ(step["top"][rank - 1]["token"], candidate["token"]);
      EXPECT_EQ(step["top"][rank - 1]["logprob"], candidate["logprob"]);
    }
  }
}

TEST_F(Watch, ACandidateOfSeveralTokensIsRefusedAndItsPartsAreShown) {
  const Outcome outcome = quire("run --candidates the,xylophonically hi");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_TRUE(contains(outcome.err, "\"xylophonically\" is not one token")) << outcome.err;
  EXPECT_TRUE(contains(outcome.err, "\"x")) << outcome.err;
}

TEST_F(Watch, ALineForEachTokenAndThenTheText) {
  const Json plain = run("");
  const Outcome told = quire("run --seed 3 -n 40 --top 3 --candidates the 'Tell me a story.'");
  EXPECT_EQ(told.code, 0) << told.err;
  const std::string text = plain["text"];
  EXPECT_TRUE(told.out.ends_with("\n\n" + text + "\n")) << told.out;
  const std::string table = told.out.substr(0, told.out.size() - text.size() - 2);
  EXPECT_EQ(size_t(std::count(table.begin(), table.end(), '\n')), plain["token_ids"].size());
  EXPECT_TRUE(contains(table, " is no. "));
  EXPECT_FALSE(contains(told.out, "\033"));  // colours are for terminals
}

TEST_F(Watch, GuessesAreMarkedAndTheirSumsAreTheAccounts) {
  const Json answer = run("--draft house-draft --show-drafts");
  size_t right = 0, wrong = 0;
  for (const Json& step : answer["steps"]) {
    right += step["guessed"].get<bool>();
    wrong += step["wrong_guesses"].size();
    if (!step["guessed"] && !step["wrong_guesses"].empty()) {
      EXPECT_NE(step["wrong_guesses"][0]["token"], step["token"]);
    }
  }
  EXPECT_EQ(right, answer["account"]["accepted"]);
  EXPECT_EQ(right + wrong, answer["account"]["drafted"]);
  EXPECT_GT(right, 0);

  const Outcome told = quire("run --seed 3 -n 40 --draft house-draft --show-drafts 'Tell me a story.'");
  EXPECT_TRUE(contains(told.out, "[")) << told.out;
  EXPECT_EQ(quire("run --show-drafts hi").code, 2);
}

TEST_F(Watch, ATurnComputesOnlyWhatIsNew) {
  const Outcome told = quire("chat --stats --temperature 0 -n 12", "Hello\nAnd again\n");
  EXPECT_EQ(told.code, 0) << told.err;
  EXPECT_TRUE(contains(told.err, "[turn 1: 0 cached + ")) << told.err;
  EXPECT_TRUE(contains(told.err, "[turn 2: ")) << told.err;
  EXPECT_FALSE(contains(told.err, "[turn 2: 0 cached")) << told.err;
  EXPECT_FALSE(contains(told.err, "tells the past otherwise")) << told.err;
}

TEST_F(Watch, ATemplateThatRewritesThePastIsFoundOutWithTheTokenAndTheTexts) {
  std::filesystem::copy(llama_, path("model"), std::filesystem::copy_options::recursive);
  const std::string config = path("model") + "/tokenizer_config.json";
  Json settings = parse_json(slurp(config), config);
  settings["chat_template"] =
      "{% for m in messages %}{% if m.role == 'user' %}Q {{ m.content }} A{% else %} FORGOTTEN {% endif %}{% "
      "endfor %}";
  std::filesystem::remove(path("model") + "/chat_template.jinja");
  std::ofstream(config) << settings.dump();

  const Outcome told = quire("chat --stats --temperature 0 -n 8 -m " + path("model"), "one two\nthree\n");
  EXPECT_EQ(told.code, 0) << told.err;
  // Nothing was cached in the first turn, and the second goes its own way where the first one's answer began.
  const std::string mark = "[turn 1: 0 cached + ";
  const size_t begin = told.err.find(mark);
  ASSERT_NE(begin, std::string::npos) << told.err;
  const std::string prompt = std::to_string(std::stoul(told.err.substr(begin + mark.size())));
  EXPECT_TRUE(contains(told.err, "[turn 2: " + prompt + " cached + ")) << told.err;
  EXPECT_TRUE(contains(told.err, "differs at token " + prompt)) << told.err;
  EXPECT_TRUE(contains(told.err, "tells the past otherwise at token " + prompt)) << told.err;
  EXPECT_TRUE(contains(told.err, "FORGOTTEN")) << told.err;
}

}  // namespace
}  // namespace quire
