#include "engine/drafts/suffix_drafter.h"

#include <algorithm>

namespace quire {
namespace {

// Learning a token takes a fraction of a microsecond, and a step must not wait for it.
constexpr uint32_t kLearntInAStep = 2048, kKeptInAStep = 512;
constexpr uint32_t kLeastAgreement = 2;                   // tokens of the text itself
constexpr uint32_t kLeastAmongOthers = 4;                 // of what others were told
constexpr uint32_t kLookedBack = 32;                      // for a place among answers that are new
constexpr uint32_t kLeastAnswer = 8, kMostAnswer = 8192;  // tokens that are kept

}  // namespace

void SuffixDrafter::learn(const Sequence& sequence, Known& known) {
  const std::vector<TokenId>& tokens = sequence.tokens;
  if (known.turn != turn_ || (known.newest.answers == nullptr && newest_.contains(known.salt)))
    find_places(sequence, known);
  const size_t end = std::min<size_t>(tokens.size(), known.text.size() + kLearntInAStep);
  for (size_t i = known.text.size(); i < end; ++i) {
    known.text.append(tokens[i]);
    for (Place* place : {&known.newest, &known.older}) {
      if (place->answers != nullptr) place->match = place->answers->follow(place->match, tokens[i]);
    }
    if (i >= sequence.request.prompt.size() && known.answer.size() < kMostAnswer)
      known.answer.push_back(tokens[i]);
  }
}

// After the tokens that were learnt so far.
void SuffixDrafter::find_places(const Sequence& sequence, Known& known) {
  known.turn = turn_;
  const auto learnt = std::span(sequence.tokens).first(known.text.size());
  const auto newest = learnt.last(std::min<size_t>(learnt.size(), kLookedBack));
  const auto place_in = [&](const Answers& answers) {
    const auto found = answers.find(known.salt);
    if (found == answers.end()) return Place{};
    Place place{.answers = &found->second};
    for (const TokenId token : newest) place.match = place.answers->follow(place.match, token);
    return place;
  };
  known.newest = place_in(newest_);
  known.older = place_in(older_);
}

void SuffixDrafter::propose(std::span<Sequence* const> sequences, std::span<const uint32_t> most) {
  for (size_t i = 0; i < sequences.size(); ++i) {
    Sequence& sequence = *sequences[i];
    Known& known = known_[sequence.id];
    known.salt = sequence.table.salt();
    learn(sequence, known);
    if (most[i] == 0 || known.text.size() < sequence.tokens.size()) continue;
    Place best{.answers = &known.text, .match = known.text.repeated()};
    if (best.match.length < kLeastAgreement) best = {};
    for (const Place& place : {known.newest, known.older}) {
      if (place.match.length >= kLeastAmongOthers && place.match.length > best.match.length) best = place;
    }
    if (best.answers != nullptr) best.answers->guess(best.match, most[i], sequence.drafts);
  }
}

void SuffixDrafter::forget(SequenceId sequence) {
  const auto found = known_.find(sequence);
  if (found == known_.end() || found->second.is_gone) return;
  if (found->second.answer.size() < kLeastAnswer) {
    known_.erase(found);
    return;
  }
  found->second.text = {};
  found->second.is_gone = true;
  ++gone_;
}

void SuffixDrafter::forget_all() {
  known_.clear();
  newest_.clear();
  older_.clear();
  newest_tokens_ = 0;
  gone_ = 0;
  being_kept_.reset();
  ++turn_;
}

// The older answers go, and the newest become them.
void SuffixDrafter::turn_over() {
  older_ = std::move(newest_);
  newest_.clear();
  newest_tokens_ = 0;
  ++turn_;
}

// Whether all of its answer is kept now.
bool SuffixDrafter::keep_some(Known& known, uint32_t& left) {
  if (known.kept == 0 && newest_tokens_ + known.answer.size() > kept_tokens_) turn_over();
  SuffixText& answers = newest_[known.salt];
  if (known.kept == 0) answers.end_text();
  for (; left > 0 && known.kept < known.answer.size(); --left, ++newest_tokens_)
    answers.append(known.answer[known.kept++]);
  return known.kept == known.answer.size();
}

void SuffixDrafter::catch_up() {
  for (uint32_t left = kKeptInAStep; gone_ > 0 && left > 0;) {
    // One after the other, whatever else ends meanwhile.
    const auto one = being_kept_
                         ? known_.find(*being_kept_)
                         : std::ranges::find_if(known_, [](const auto& k) { return k.second.is_gone; });
    being_kept_ = one->first;
    if (!keep_some(one->second, left)) return;
    known_.erase(one);
    being_kept_.reset();
    --gone_;
  }
}

size_t SuffixDrafter::kept_bytes() const {
  size_t bytes = 0;
  for (const Answers* answers : {&newest_, &older_}) {
    for (const auto& [salt, text] : *answers) bytes += text.bytes();
  }
  return bytes;
}

}  // namespace quire
