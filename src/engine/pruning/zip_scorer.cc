#include "engine/pruning/zip_scorer.h"

#include <algorithm>

#include "engine/pruning/pooled.h"

namespace quire {
namespace {

// Tokens that are read again at a time: room for them is wanted beside the prompt.
constexpr uint32_t kPart = 200;
constexpr size_t kLongestRequest = 48;  // a template that makes more of it gets none
constexpr uint32_t kBeginning = 8;      // tokens before them, to find the place
constexpr size_t kNeighbours = 1;       // on each side of a token that is looked at: they stay with it

std::span<const TokenId> usable(std::span<const TokenId> repeat_request) {
  return repeat_request.size() <= kLongestRequest ? repeat_request : std::span<const TokenId>();
}

}  // namespace

ZipScorer::ZipScorer(const PruningOptions& options, const ModelSpec& spec, const KvLayout& layout,
                     uint32_t tokens, std::span<const TokenId> repeat_request)
    : TokenScorer(options, spec, layout, tokens),
      request_(usable(repeat_request).begin(), usable(repeat_request).end()) {}

uint32_t ZipScorer::pass_tokens(uint32_t prompt, std::span<const TokenId> repeat_request) {
  return std::min(prompt, kPart + kBeginning) + uint32_t(usable(repeat_request).size());
}

std::optional<ScoringPass> ZipScorer::pass(uint32_t index, std::span<const TokenId> prompt) const {
  const uint32_t begin = index * kPart;
  if (begin >= tokens_) return std::nullopt;
  const uint32_t first = begin < kBeginning ? 0 : begin - kBeginning, end = std::min(begin + kPart, tokens_);
  const auto part = prompt.subspan(first, end - first);
  ScoringPass pass{
      .tokens = request_, .row = tokens_, .layers = uint32_t(spec_.layers.size()), .observed = end - begin};
  pass.tokens.insert(pass.tokens.end(), part.begin(), part.end());
  return pass;
}

std::vector<float> ZipScorer::scores(size_t layer, uint32_t head) const {
  return largest_near(std::span(values_).subspan(begin_of(layer) + size_t(head) * tokens_, tokens_),
                      kNeighbours);
}

}  // namespace quire
