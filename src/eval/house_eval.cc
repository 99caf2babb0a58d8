#include "eval/house_eval.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "base/error.h"
#include "engine/text_loss.h"
#include "eval/needle_cases.h"
#include "eval/text_match.h"

namespace quire {
namespace {

constexpr uint32_t kAnswerTokens = 24;
constexpr uint32_t kExplanationTokens = 96;
constexpr uint32_t kStoryTokens = 160;
constexpr uint32_t kStoryBeginning = 40;  // tokens of a story that are given
constexpr uint32_t kSequences = 8;        // computed together
constexpr uint32_t kReadAgain = 256;      // room after a prompt for what a pruning policy reads twice

}  // namespace

HouseEval::HouseEval(const LoadedModel& model, const EngineOptions& engine, const HouseData& data,
                     uint32_t limit, Progress progress)
    : model_(model), options_(engine), data_(data), limit_(limit), progress_(std::move(progress)) {
  options_.max_sequences = kSequences;
}

size_t HouseEval::limited(size_t count) const {
  return limit_ == 0 ? count : std::min<size_t>(count, limit_);
}

std::vector<Answer> HouseEval::answer_all(std::string_view part, std::vector<Ask> asks, uint32_t max_tokens) {
  // Pages for what is asked here, not for the whole context of the model.
  size_t longest = 0;
  for (const Ask& ask : asks) longest = std::max(longest, ask.prompt.size());
  EngineOptions options = options_;
  options.context = std::min<uint32_t>(options.context, uint32_t(longest) + std::max(max_tokens, kReadAgain));
  Engine engine(model_.engine_model(), options);
  std::vector<SequenceId> ids;
  for (Ask& ask : asks) {
    Request request;
    request.prompt = std::move(ask.prompt);
    if (choose_ && ask.text_tokens > 0) {
      const bool hidden = question_ == Question::hidden;
      const std::span<const TokenId> whole = request.prompt;
      request.pruning = choose_(hidden ? whole.first(ask.text_tokens) : whole);
      if (request.pruning && ask.text_tokens <= request.pruning->window) request.pruning.reset();
      if (request.pruning && hidden) request.pruning->scored = ask.text_tokens;
    }
    request.sampling.temperature = 0;
    request.max_tokens = max_tokens;
    ids.push_back(engine.submit(std::move(request)));
  }
  std::vector<Answer> answers(ids.size());
  std::vector<size_t> open(ids.size());
  std::iota(open.begin(), open.end(), size_t(0));
  while (!open.empty()) {
    CHECK(engine.step());
    std::erase_if(open, [&](size_t i) {
      std::optional<Answer> answer = engine.take_answer(ids[i]);
      if (answer) answers[i] = std::move(*answer);
      return answer.has_value();
    });
    if (progress_) progress_(part, ids.size() - open.size(), ids.size());
  }
  return answers;
}

Tally HouseEval::ask(const std::string& part, const std::vector<Case>& cases) {
  std::vector<Ask> asks;
  for (const Case& one : cases) {
    asks.push_back({user_prompt(model_.text(), one.text + one.asked.question)});
    // What is the same whatever is asked stands before the question.
    const std::vector<TokenId> other = user_prompt(model_.text(), one.text + "?");
    const auto parted = std::ranges::mismatch(asks.back().prompt, other).in1;
    asks.back().text_tokens = uint32_t(parted - asks.back().prompt.begin());
  }
  const std::vector<Answer> answers = answer_all(part, std::move(asks), kAnswerTokens);
  Tally tally{.asked = uint32_t(cases.size())};
  for (size_t i = 0; i < cases.size(); ++i) {
    const HouseData::Question& asked = cases[i].asked;
    const bool right =
        sentences_ ? says_answer(asked.answer, answers[i].text) : same_answer(asked.answer, answers[i].text);
    tally.right += right;
    judged_.push_back({part, asked.question, asked.answer, answers[i].text, right});
  }
  return tally;
}

Tally HouseEval::reading(const std::string& set) {
  std::vector<Case> all, cases;
  for (const HouseData::Reading& reading : data_.readings) {
    if (reading.set != set) continue;
    for (const HouseData::Question& question : reading.questions) {
      all.push_back({reading.text + "\n\n", question});
    }
  }
  for (size_t i : spread(all.size(), limited(all.size()))) cases.push_back(all[i]);
  return ask("reading " + set, cases);
}

NeedleTally HouseEval::needles(uint32_t tokens) {
  std::vector<Case> cases;
  for (const NeedleCase& one : needle_cases(model_.text(), data_, limited(data_.needles.size()), tokens))
    cases.push_back({one.text(), one.asked});
  return {tokens, ask("needles " + std::to_string(tokens), cases)};
}

Tally HouseEval::explanations() {
  std::vector<std::set<Trigram>> topics;
  for (const HouseData::Topic& topic : data_.topics) {
    topics.emplace_back();
    for (const std::string& phrasing : topic.phrasings) topics.back().merge(trigrams_of(phrasing));
  }
  const std::vector<size_t> chosen = spread(data_.explanations.size(), limited(data_.explanations.size()));
  std::vector<Ask> asks;
  for (size_t i : chosen) asks.push_back({user_prompt(model_.text(), data_.explanations[i].question)});
  const std::vector<Answer> answers = answer_all("inference", std::move(asks), kExplanationTokens);
  Tally tally{.asked = uint32_t(chosen.size())};
  for (size_t k = 0; k < chosen.size(); ++k) {
    const HouseData::Explanation& asked = data_.explanations[chosen[k]];
    const std::set<Trigram> said = trigrams_of(answers[k].text);
    size_t best = 0, best_shared = 0;
    for (size_t t = 0; t < topics.size(); ++t) {
      const size_t shared = size_t(
          std::count_if(said.begin(), said.end(), [&](const Trigram& x) { return topics[t].contains(x); }));
      if (shared > best_shared) {
        best = t;
        best_shared = shared;
      }
    }
    const bool right =
        best_shared > 0 && std::count(asked.topics.begin(), asked.topics.end(), data_.topics[best].name) > 0;
    tally.right += right;
    judged_.push_back({"inference", asked.question, asked.topics.front(), answers[k].text, right});
  }
  return tally;
}

StoryScore HouseEval::stories() {
  StoryScore score_sum;
  const size_t count = limited(data_.stories.size());
  for (size_t i = 0; i < count; ++i) {
    const std::vector<TokenId> tokens = model_.text().tokenizer.encode(data_.stories[i]);
    const LossOptions options{.part_tokens = std::max<uint32_t>(2, uint32_t(tokens.size())),
                              .prefill_chunk = options_.prefill_chunk,
                              .kv_formats = options_.kv_formats};
    const std::vector<double> of_story = losses(model_.engine_model(), tokens, options);
    score_sum.loss = std::accumulate(of_story.begin(), of_story.end(), score_sum.loss);
    score_sum.tokens += of_story.size();
    if (progress_) progress_("stories", i + 1, count);
  }
  score_sum.loss /= double(std::max<size_t>(1, score_sum.tokens));
  return score_sum;
}

Tally HouseEval::draft_agreement(const LoadedModel& draft) {
  if (draft.spec().vocab != model_.spec().vocab) {
    throw Error("the draft model has {} tokens and the model {}: they cannot work together",
                draft.spec().vocab, model_.spec().vocab);
  }
  const size_t count = limited(data_.stories.size());
  std::vector<std::vector<TokenId>> beginnings;
  for (size_t i = 0; i < count; ++i) {
    std::vector<TokenId> tokens = model_.text().tokenizer.encode(data_.stories[i]);
    tokens.resize(std::min<size_t>(tokens.size(), kStoryBeginning));
    beginnings.push_back(std::move(tokens));
  }
  std::vector<Ask> asks;
  for (const auto& beginning : beginnings) asks.push_back({beginning});
  const std::vector<Answer> answers = answer_all("draft", std::move(asks), kStoryTokens);
  const KvFormatPair rest = options_.kv_formats.rest();  // the draft has layers of its own
  Tally tally;
  for (size_t i = 0; i < count; ++i) {
    std::vector<TokenId> tokens = beginnings[i];
    tokens.insert(tokens.end(), answers[i].tokens.begin(), answers[i].tokens.end());
    const LossOptions options{.part_tokens = uint32_t(tokens.size()),
                              .prefill_chunk = options_.prefill_chunk,
                              .kv_formats = {rest.key, rest.value}};
    for_each_logits(
        draft.engine_model(), tokens, options, [&](size_t position, std::span<const float> logits) {
          if (position + 1 < beginnings[i].size()) return;
          const size_t best = size_t(std::max_element(logits.begin(), logits.end()) - logits.begin());
          tally.right += best == tokens[position + 1];
          ++tally.asked;
        });
  }
  return tally;
}

}  // namespace quire
