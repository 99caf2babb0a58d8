#include "engine/pruning/budget_options.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"

namespace quire {
namespace {

// Of the budget that goes at a time: the less, the nearer to the budget a sequence stays; the more, the longer the runs that a prompt
// is computed in.
constexpr uint32_t kParts = 16;

size_t bytes_per_row(const KvLayout& layout) {
  size_t bytes = 0;
  for (const KvGroupLayout& group : layout.groups) bytes += group.keeps_all() ? group.bytes_per_token() : 0;
  return bytes;
}

uint32_t whole_nodes(uint64_t rows, const KvLayout& layout) {
  return uint32_t(std::min<uint64_t>(rows, UINT32_MAX / 2) / layout.node_tokens * layout.node_tokens);
}

}  // namespace

void check_budget_policy(PruningPolicy policy) {
  if (policy == PruningPolicy::snap || policy == PruningPolicy::streaming) return;
  throw Error(
      "the policy {} judges a whole prompt, not a sequence as it grows: with a budget there are snap and "
      "streaming",
      name(policy));
}

void BudgetOptions::check() const {
  if ((rows > 0) == (bytes > 0)) throw Error("a budget is a number of rows or of bytes");
  if (window == 0 || window > 4096) throw Error("1 to 4096 last tokens can be kept for sure, not {}", window);
  if (pinned > 1u << 20) throw Error("at most {} first tokens can be pinned, not {}", 1u << 20, pinned);
  check_budget_policy(policy);
}

uint32_t BudgetOptions::rows_of(const KvLayout& layout) const {
  const size_t each = bytes_per_row(layout);
  if (each == 0) throw Error("no layer of this model sees everything: there is nothing that a budget bounds");
  const uint32_t most = whole_nodes(rows > 0 ? rows : bytes / each, layout);
  const uint64_t least = uint64_t(pinned) + window + 2 * layout.node_tokens;
  if (most < least) {
    throw Error(
        "a budget of {} rows, {} in whole pages, is too small: the first {} tokens and the last {} always "
        "stay, "
        "and {} rows go at a time; {} are enough",
        rows > 0 ? rows : bytes / each, most, pinned, window, layout.node_tokens,
        (least + layout.node_tokens - 1) / layout.node_tokens * layout.node_tokens);
  }
  return most;
}

uint32_t BudgetOptions::step_of(const KvLayout& layout) const {
  const uint32_t all = rows_of(layout);
  // What always stays and what may be chosen from that.
  const uint32_t choice = all - pinned - window;
  return std::max(layout.node_tokens, whole_nodes(std::min(all / kParts, choice / 2), layout));
}

void read_budget(std::string_view text, BudgetOptions& options) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string_view unit = text.substr(size_t(end - text.data()));
  uint64_t scale = 0;
  if (unit.empty()) scale = 1;
  for (const auto& [letter, bits] : {std::pair{'k', 10}, {'K', 10}, {'M', 20}, {'G', 30}}) {
    if (!unit.empty() && unit.front() == letter &&
        (unit.size() == 1 || unit.substr(1) == "iB" || unit.substr(1) == "B"))
      scale = uint64_t(1) << bits;
  }
  const bool is_rows = unit.empty();
  const uint64_t most = is_rows ? UINT32_MAX : uint64_t(1) << 50;
  if (error != std::errc() || scale == 0 || number == 0 || number > most / scale)
    throw Error("\"{}\" is no budget: a number of rows like 2000, or of bytes like 64M", text);
  options.rows = is_rows ? uint32_t(number) : 0;
  options.bytes = is_rows ? 0 : size_t(number * scale);
}

}  // namespace quire
