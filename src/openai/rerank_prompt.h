#pragma once

#include <string>
#include <vector>

#include "openai/openai_request.h"

namespace quire {

// What a model that judges pairs of texts is asked, in the words of Qwen3-Reranker.
struct Judgement {
  std::string instruction;  // empty: the usual one
  std::string query, document;
};
// Whose probabilities the score is made of.
struct JudgeTokens {
  TokenId yes = 0, no = 0;
};

// Throws ApiError if the model's vocabulary has not these words, or no turns as Qwen's.
JudgeTokens judge_tokens(const ServedModel& model);
// Throws ApiError, for `field`, if it does not fit the context.
std::vector<TokenId> judge_prompt(const Judgement& judgement, const std::string& field,
                                  const ServedModel& model);

}  // namespace quire
