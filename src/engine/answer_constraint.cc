#include "engine/answer_constraint.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace quire {
namespace {

constexpr const char* kNoToken = "no token of the model can go on with what the grammar asks for";

}  // namespace

AnswerConstraint::AnswerConstraint(std::shared_ptr<grammar::Grammar> grammar, std::vector<TokenId> end_tokens,
                                   uint32_t vocab)
    : constraint_(std::move(grammar)), end_tokens_(std::move(end_tokens)), vocab_(vocab), masks_(1) {
  if (!look(masks_[0])) throw Error("{}", kNoToken);
}

std::span<const uint32_t> AnswerConstraint::allowed(uint32_t draft) const {
  return draft < masks_.size() ? std::span<const uint32_t>(masks_[draft]) : std::span<const uint32_t>();
}

bool AnswerConstraint::look(std::vector<uint32_t>& mask) {
  const auto grammar_mask = constraint_.mask();
  mask.assign((vocab_ + 31) / 32, 0);
  std::copy_n(grammar_mask->begin(), std::min(mask.size(), grammar_mask->size()), mask.begin());
  const bool may_end = constraint_.may_end();
  for (const TokenId end : end_tokens_) {
    if (end >= vocab_) continue;
    const uint32_t bit = 1u << end % 32;
    mask[end / 32] = may_end ? mask[end / 32] | bit : mask[end / 32] & ~bit;
  }
  return std::ranges::any_of(mask, [](uint32_t word) { return word != 0; });
}

void AnswerConstraint::shape(std::vector<TokenId>& drafts, uint32_t most) {
  masks_.resize(1);
  try {
    if (std::vector<TokenId> forced = constraint_.forced(most); !forced.empty()) drafts = std::move(forced);
    for (const TokenId draft : drafts) {
      if (std::ranges::find(end_tokens_, draft) != end_tokens_.end() || !constraint_.advance(draft)) break;
      if (!look(masks_.emplace_back())) {
        masks_.pop_back();
        break;
      }
    }
  } catch (const Error&) {
    masks_.resize(1);  // then nothing is guessed
  }
  constraint_.rollback(constraint_.tokens().size() - tokens_);
  drafts.resize(masks_.size() - 1);
}

FinishReason AnswerConstraint::add(TokenId token) {
  masks_.resize(1);
  try {
    if (!constraint_.advance(token)) {
      problem_ = "a token was drawn that the grammar does not allow";
      return FinishReason::failed;
    }
    tokens_ = constraint_.tokens().size();
    if (constraint_.must_end() && constraint_.may_end()) return FinishReason::stop;
    if (look(masks_[0])) return FinishReason::none;
    problem_ = kNoToken;
  } catch (const Error& error) {
    problem_ = error.what();
  }
  return FinishReason::failed;
}

}  // namespace quire
