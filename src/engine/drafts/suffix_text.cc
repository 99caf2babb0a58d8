#include "engine/drafts/suffix_text.h"

#include <algorithm>
#include <cstddef>

namespace quire {
namespace {

constexpr int kMostCounted = 32;      // of the ends of a text, the longest
constexpr int kMostEdges = 64;        // looked at for what followed most often: the newest
constexpr double kLeastChance = 0.3;  // of a guess as a whole

}  // namespace

uint32_t SuffixText::next(uint32_t state, TokenId token) const {
  if (state == 0) {
    const auto found = from_root_.find(token);
    return found == from_root_.end() ? kNone : found->second;
  }
  for (uint32_t edge = states_[state].edges; edge != kNone; edge = edges_[edge].next) {
    if (edges_[edge].token == token) return edges_[edge].to;
  }
  return kNone;
}

void SuffixText::add_edge(uint32_t from, TokenId token, uint32_t to) {
  if (from == 0) {
    from_root_[token] = to;
    return;
  }
  edges_.push_back({.token = token, .to = to, .next = states_[from].edges});
  states_[from].edges = uint32_t(edges_.size() - 1);
}

void SuffixText::redirect(uint32_t from, TokenId token, uint32_t to) {
  if (from == 0) {
    from_root_[token] = to;
    return;
  }
  uint32_t edge = states_[from].edges;
  while (edges_[edge].token != token) edge = edges_[edge].next;
  edges_[edge].to = to;
}

// A state of its own for the texts of `state` that are no longer than `length`. They stand wherever the others do, and elsewhere.
uint32_t SuffixText::split(uint32_t state, uint32_t length) {
  const uint32_t made = uint32_t(states_.size());
  states_.push_back(states_[state]);
  states_[made].length = length;
  states_[made].edges = kNone;
  for (uint32_t edge = states_[state].edges; edge != kNone; edge = edges_[edge].next)
    add_edge(made, edges_[edge].token, edges_[edge].to);
  states_[state].link = made;
  return made;
}

// The state where the texts of `from` end after `token`: theirs alone from now on.
uint32_t SuffixText::own_next(uint32_t from, TokenId token) {
  const uint32_t to = next(from, token);
  if (states_[to].length == states_[from].length + 1) return to;
  const uint32_t made = split(to, states_[from].length + 1);
  for (uint32_t state = from; state != kNone && next(state, token) == to; state = states_[state].link)
    redirect(state, token, made);
  return made;
}

void SuffixText::append(TokenId token) {
  if (states_.empty()) states_.push_back({.link = kNone});
  ++tokens_;
  if (next(end_, token) != kNone) {
    end_ = own_next(end_, token);
  } else {
    const uint32_t made = uint32_t(states_.size());
    states_.push_back({.length = states_[end_].length + 1});
    uint32_t state = end_;
    for (; state != kNone && next(state, token) == kNone; state = states_[state].link)
      add_edge(state, token, made);
    const uint32_t link = state == kNone ? 0 : own_next(state, token);
    states_[made].link = link;
    end_ = made;
  }
  uint32_t state = end_;
  for (int i = 0; i < kMostCounted && state != 0; ++i, state = states_[state].link) {
    ++states_[state].count;
    states_[state].last = tokens_;
  }
}

void SuffixText::end_text() {
  end_ = 0;
}

// Its state, where that was split since.
SuffixText::Match SuffixText::found_again(Match match) const {
  while (match.state != 0 && match.length <= states_[states_[match.state].link].length)
    match.state = states_[match.state].link;
  return match;
}

SuffixText::Match SuffixText::follow(Match match, TokenId token) const {
  match = found_again(match);
  for (;;) {
    if (const uint32_t to = next(match.state, token); to != kNone) return {to, match.length + 1};
    if (match.state == 0) return {};
    match.state = states_[match.state].link;
    match.length = states_[match.state].length;
  }
}

SuffixText::Match SuffixText::repeated() const {
  const uint32_t link = states_.empty() ? kNone : states_[end_].link;
  return link == kNone ? Match{} : Match{link, states_[link].length};
}

void SuffixText::guess(Match match, uint32_t most, std::vector<TokenId>& guess) const {
  double chance = 1;
  for (uint32_t state = found_again(match).state; most > 0 && state != 0; --most) {
    uint64_t all = 0;
    const Edge* best = nullptr;
    int looked = 0;
    for (uint32_t at = states_[state].edges; at != kNone && looked < kMostEdges;
         at = edges_[at].next, ++looked) {
      const State& to = states_[edges_[at].to];
      all += to.count;
      const auto rank = [&](const State& one) { return std::pair(one.count, one.last); };
      if (best == nullptr || rank(to) > rank(states_[best->to])) best = &edges_[at];
    }
    if (best == nullptr) return;
    chance *= double(states_[best->to].count) / double(all);
    if (chance < kLeastChance) return;
    guess.push_back(best->token);
    state = best->to;
  }
}

}  // namespace quire
