#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "base/id.h"

namespace quire {

// A text of tokens that grows, and all that stands in it anywhere: its suffix automaton. A state is all the places where the same
// tokens end; it knows how many they are, which is the newest, and what follows. A token takes some 80 bytes.
class SuffixText {
 public:
  // How much of a text's end stands in this one somewhere: the longest such end, and its state.
  struct Match {
    uint32_t state = 0;
    uint32_t length = 0;  // tokens
  };

  void append(TokenId token);
  // What is appended next does not follow what stands here.
  void end_text();
  uint32_t size() const { return tokens_; }
  size_t bytes() const { return states_.size() * sizeof(State) + edges_.size() * sizeof(Edge); }

  // The match of a text that goes on by a token.
  Match follow(Match match, TokenId token) const;
  // Of the text itself: what its end has in common with an earlier place.
  Match repeated() const;
  // Adds to `guess` what followed most often, the newest of equals, as far as the guess as a whole has a chance by these counts; at
  // most so many tokens.
  void guess(Match match, uint32_t most, std::vector<TokenId>& guess) const;

 private:
  static constexpr uint32_t kNone = ~uint32_t(0);
  struct State {
    uint32_t length = 0;  // of the longest text that ends here
    uint32_t link = 0;    // where its longest end is that also stands elsewhere
    uint32_t edges = kNone;
    uint32_t count = 0;  // places: all of the newest, of old ones perhaps not all
    uint32_t last = 0;   // the newest of them
  };
  struct Edge {
    TokenId token{};
    uint32_t to = 0;
    uint32_t next = kNone;
  };

  uint32_t next(uint32_t state, TokenId token) const;
  uint32_t split(uint32_t state, uint32_t length);
  uint32_t own_next(uint32_t from, TokenId token);
  Match found_again(Match match) const;
  void add_edge(uint32_t from, TokenId token, uint32_t to);
  void redirect(uint32_t from, TokenId token, uint32_t to);

  std::vector<State> states_;  // the first: the empty text
  std::vector<Edge> edges_;
  std::unordered_map<TokenId, uint32_t> from_root_;  // it has too many edges to look through
  uint32_t end_ = 0;                                 // the state of all the text
  uint32_t tokens_ = 0;
};

}  // namespace quire
