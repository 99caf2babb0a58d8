#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/loaded_model.h"
#include "eval/house_data.h"

namespace quire {

struct Tally {
  uint32_t asked = 0;
  uint32_t right = 0;
  double share() const { return asked == 0 ? 0 : double(right) / asked; }
};

// One answer that was judged: what a person looks at when a figure is odd.
struct Judged {
  std::string part, question, expected, answer;
  bool right = false;
};

struct NeedleTally {
  uint32_t tokens = 0;  // of the prompt
  Tally tally;
};

struct StoryScore {
  double loss = 0;  // nats a token
  size_t tokens = 0;
};

// Questions for a model that was trained as the house model was; greedy answers, judged by rule. It asks through the
// engine, so that whatever the engine does to pages shows in the figures.
class HouseEval {
 public:
  using Progress = std::function<void(std::string_view part, size_t done, size_t of)>;

  // `limit`: most questions of each part (0: all). The model and the data must outlive this.
  HouseEval(const LoadedModel& model, const EngineOptions& engine, const HouseData& data, uint32_t limit,
            Progress progress);

  // Prunes every prompt, with its question or up to where that begins: then what chooses does not know what will be asked.
  enum class Question : uint8_t { hidden, seen };
  void prune(const PruningOptions& pruning, Question question = Question::hidden) {
    choose_ = [pruning](std::span<const TokenId>) { return pruning; };
    question_ = question;
  }
  // The same, but every prompt as it is chosen for it.
  using Choose = std::function<std::optional<PruningOptions>(std::span<const TokenId> prompt)>;
  void prune(Choose choose, Question question) {
    choose_ = std::move(choose);
    question_ = question;
  }
  // For models that answer in sentences: right is what says the expected somewhere.
  void accept_sentences() { sentences_ = true; }

  // Questions about a text that stands before them; `set` is "new" or "unseen".
  Tally reading(const std::string& set);
  // A fact stated once among other texts, at every depth, asked at the end of a prompt of about `tokens` tokens.
  NeedleTally needles(uint32_t tokens);
  // Questions about inference, answered on the right topic: the one whose phrasings share most with the answer.
  Tally explanations();
  // How well it predicts stories that it never saw.
  StoryScore stories();
  // How often the best token of `draft` is the one this model chose, in the stories it goes on to tell.
  Tally draft_agreement(const LoadedModel& draft);

  const std::vector<Judged>& judged() const { return judged_; }

 private:
  struct Ask {
    std::vector<TokenId> prompt;
    uint32_t text_tokens = 0;  // before the question
  };
  std::vector<Answer> answer_all(std::string_view part, std::vector<Ask> asks, uint32_t max_tokens);
  struct Case {
    std::string text;  // that stands before the question
    HouseData::Question asked;
  };
  Tally ask(const std::string& part, const std::vector<Case>& cases);
  size_t limited(size_t count) const;

  const LoadedModel& model_;
  EngineOptions options_;
  const HouseData& data_;
  uint32_t limit_;
  bool sentences_ = false;
  Choose choose_;  // empty: nothing is pruned
  Question question_ = Question::hidden;
  Progress progress_;
  std::vector<Judged> judged_;
};

}  // namespace quire
