#pragma once

#include <string>
#include <vector>

#include "engine/model_text.h"
#include "eval/house_data.h"

namespace quire {

// A fact stated once among other texts, and a question for it.
struct NeedleCase {
  std::string before, sentence, after;  // the text; `after` ends where the question begins
  HouseData::Question asked;

  std::string text() const { return before + sentence + after; }
};

// The tokens of one message of a user.
std::vector<TokenId> user_prompt(const ModelText& model, const std::string& text);

// So many of the needles, evenly spread over all there are and over the depths of texts of about `tokens` tokens.
std::vector<NeedleCase> needle_cases(const ModelText& model, const HouseData& data, size_t count,
                                     uint32_t tokens);

// Two lists of such cases, with other needles in each; a needle that does not fit so many tokens by itself is left out. A text states
// several facts, one after the other in the list, so that its pages serve all of them.
struct NeedleSplit {
  std::vector<NeedleCase> first, second;
};
NeedleSplit split_needle_cases(const ModelText& model, const HouseData& data, size_t first, size_t second,
                               uint32_t tokens);

// `count` of n items, evenly spread.
std::vector<size_t> spread(size_t n, size_t count);

}  // namespace quire
