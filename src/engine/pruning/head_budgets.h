#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace quire {

// The places of the `count` largest scores, of equals the earlier ones, ascending. What is no number is the least.
std::vector<uint32_t> best_of(std::span<const float> scores, uint32_t count);

// Splits `each` rows for every head over all of them, so that the scores of the best rows of each come to the most: a head has
// pages of `page_tokens` rows more than `each`, or fewer, but not fewer than the safeguard. Where pages are worth the same
// every head gets its first before any gets its second. REQUIRES: all heads have as many scores, at least `each`.
std::vector<uint32_t> split_budget(std::span<const std::vector<float>> scores, uint32_t each,
                                   uint32_t page_tokens);

}  // namespace quire
