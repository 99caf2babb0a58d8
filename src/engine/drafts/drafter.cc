#include "engine/drafts/drafter.h"

#include <algorithm>
#include <cmath>

namespace quire {
namespace {

uint64_t hash_of(std::span<const TokenId> tokens) {
  uint64_t hash = tokens.size();
  for (TokenId token : tokens) hash = (hash ^ token) * 0x9e3779b97f4a7c15u + (hash >> 29);
  return hash;
}

double blend(double old, double now) {
  return old <= 0 ? now : 0.8 * old + 0.2 * now;
}

}  // namespace

void LookupDrafter::propose(std::span<Sequence* const> sequences, std::span<const uint32_t> most) {
  for (size_t i = 0; i < sequences.size(); ++i) {
    Sequence& sequence = *sequences[i];
    const std::vector<TokenId>& tokens = sequence.tokens;
    Known& known = known_[sequence.id];
    // Everything but the newest token: what ends with that one is what is looked for.
    for (; known.tokens + 1 < tokens.size(); ++known.tokens) {
      const uint32_t end = known.tokens + 1;
      for (uint32_t n = kShortest; n <= kLongest && n <= end; ++n)
        known.after[n][hash_of(std::span(tokens).subspan(end - n, n))] = end;
    }
    for (uint32_t n = kLongest; n >= kShortest && sequence.drafts.empty() && most[i] > 0; --n) {
      if (tokens.size() <= n) continue;
      const auto newest = std::span(tokens).last(n);
      const auto found = known.after[n].find(hash_of(newest));
      if (found == known.after[n].end()) continue;
      const uint32_t at = found->second;
      if (!std::ranges::equal(std::span(tokens).subspan(at - n, n), newest)) continue;
      const size_t count = std::min<size_t>(most[i], tokens.size() - at);
      sequence.drafts.assign(tokens.begin() + at, tokens.begin() + at + ptrdiff_t(count));
    }
  }
}

uint32_t DraftPace::length(SequenceId sequence) {
  constexpr uint32_t kTryEvery = 24, kTry = 2;
  Record& record = records_[sequence];
  uint32_t best = 0;
  if (plain_ms_ <= 0 || extra_ms_ <= 0) {
    best = std::min(most_, 4u);
  } else {
    double best_rate = 1 / plain_ms_;
    double expected = 1, right = 1;
    for (uint32_t k = 1; k <= most_; ++k) {
      right *= record.acceptance;
      expected += right;
      const double rate = expected / (plain_ms_ + k * extra_ms_);
      if (rate > best_rate) {
        best_rate = rate;
        best = k;
      }
    }
  }
  if (best == 0 && ++record.idle_steps % kTryEvery == 0) best = std::min(most_, kTry);
  return best;
}

void DraftPace::learn_result(SequenceId sequence, uint32_t drafted, uint32_t accepted) {
  if (drafted == 0) return;
  Record& record = records_[sequence];
  // Each accepted guess is a success; the first wrong one a failure; those after it were not judged.
  constexpr double kWeight = 0.12;
  for (uint32_t i = 0; i < accepted; ++i) record.acceptance += kWeight * (1 - record.acceptance);
  if (accepted < drafted) record.acceptance -= kWeight * record.acceptance;
}

void DraftPace::learn_step(double step_ms, double guess_ms, uint32_t sequences, uint32_t drafts) {
  if (sequences == 0) return;
  if (drafts == 0) {
    plain_ms_ = blend(plain_ms_, step_ms);
  } else if (plain_ms_ > 0) {
    extra_ms_ = blend(extra_ms_, std::max(step_ms + guess_ms - plain_ms_, 0.01 * plain_ms_) / drafts);
  } else {
    plain_ms_ = (step_ms + guess_ms) / (1 + 0.3 * drafts);  // a guess, until a step without drafts was seen
  }
}

}  // namespace quire
