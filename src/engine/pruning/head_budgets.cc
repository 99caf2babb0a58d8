#include "engine/pruning/head_budgets.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <limits>
#include <numeric>
#include <tuple>

namespace quire {
namespace {

// This share of its pages no head loses: the scores of another may be large and mean little.
constexpr double kSafeguard = 0.2;

// Sorting wants an order, which NaN has none in.
float number(float score) {
  return score == score ? score : std::numeric_limits<float>::lowest();
}

}  // namespace

std::vector<uint32_t> best_of(std::span<const float> scores, uint32_t count) {
  std::vector<uint32_t> places(scores.size());
  std::iota(places.begin(), places.end(), 0u);
  const auto better = [&](uint32_t a, uint32_t b) {
    const float x = number(scores[a]), y = number(scores[b]);
    return x != y ? x > y : a < b;
  };
  std::nth_element(places.begin(), places.begin() + count, places.end(), better);
  places.resize(count);
  std::ranges::sort(places);
  return places;
}

std::vector<uint32_t> split_budget(std::span<const std::vector<float>> scores, uint32_t each,
                                   uint32_t page_tokens) {
  const uint32_t pages = each / page_tokens, least = uint32_t(kSafeguard * pages);
  std::vector<uint32_t> budgets(scores.size(), each - (pages - least) * page_tokens);
  struct Page {
    double worth;
    size_t first;  // of its rows, in the head's order
    size_t head;
  };
  std::vector<Page> wanted;  // what each head would take next, its best rows first
  std::vector<float> sorted;
  for (size_t head = 0; head < scores.size(); ++head) {
    sorted.clear();
    for (const float score : scores[head]) sorted.push_back(number(score));
    std::ranges::sort(sorted, std::greater());
    for (size_t row = budgets[head]; row + page_tokens <= sorted.size(); row += page_tokens) {
      const auto begin = sorted.begin() + std::ptrdiff_t(row);
      wanted.push_back({std::accumulate(begin, begin + page_tokens, 0.0), row, head});
    }
  }
  // Of pages that are worth the same every head gets its first before any gets its second.
  std::ranges::sort(wanted, {},
                    [](const Page& page) { return std::tuple(-page.worth, page.first, page.head); });
  wanted.resize(size_t(pages - least) * scores.size());
  for (const Page& page : wanted) budgets[page.head] += page_tokens;
  return budgets;
}

}  // namespace quire
