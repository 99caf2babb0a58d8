#include <unordered_map>
#include <utility>

#include "grammar/expr_pool.h"

// Whether an expression allows any text at all.

namespace quire::grammar {
namespace {

constexpr size_t kMostSearched = 20'000;  // states that are looked at to find out whether a language is empty

}  // namespace

const Multiples* ExprPool::multiples_in(ExprId a, int depth) const {
  const Node& node = nodes_[a];
  if (node.kind == Kind::multiples) return &node.numbers;
  if (depth == 0 || node.kind == Kind::complement || node.kind == Kind::repeat) return nullptr;
  for (ExprId part : node.parts) {
    if (const Multiples* found = multiples_in(part, depth - 1)) return found;
  }
  return nullptr;
}

// Of multiples of a large number by breadth there is no end to remainders: but it is known which digits lead to one.
bool ExprPool::has_near_multiple(ExprId a) {
  const Multiples* found = multiples_in(a, 3);
  if (found == nullptr || found->left >= 0) return false;
  const Multiples numbers = *found;
  using Wide = unsigned __int128;
  Wide tens = 1;
  for (int digits = 1; digits <= 18; ++digits) {
    tens *= 10;
    const Wide rest = Wide(numbers.remainder) * (tens % numbers.modulus) % numbers.modulus;
    const Wide first = (numbers.modulus - rest) % numbers.modulus;
    for (int lead = 0; lead < 10; ++lead) {
      const Wide from = tens / 10 * Wide(lead);
      const Wide value =
          from <= first ? first
                        : first + (from - first + numbers.modulus - 1) / numbers.modulus * numbers.modulus;
      if (value >= tens) break;
      std::string text(size_t(digits), '0');
      Wide left = value;
      for (size_t i = text.size(); i-- > 0; left /= 10) text[i] = char('0' + int(left % 10));
      if (matches(a, text)) return true;
    }
  }
  return false;
}

bool ExprPool::is_live(ExprId a) {
  if (nodes_[a].live != Answer::unknown) return nodes_[a].live == Answer::yes;
  if (has_near_multiple(a)) {
    nodes_[a].live = Answer::yes;
    return true;
  }
  // By breadth: the nearest text that belongs to it. Whoever is on the way there is known from then on.
  std::vector<std::pair<ExprId, size_t>> found{{a, 0}};
  std::unordered_map<ExprId, bool> seen{{a, true}};
  for (size_t i = 0; i < found.size(); ++i) {
    if (found.size() > kMostSearched) break;
    const std::vector<ExprId> next = steps(found[i].first).to;
    for (ExprId to : next) {
      if (nodes_[to].live == Answer::no) continue;
      if (nodes_[to].live == Answer::yes) {
        for (size_t at = i;; at = found[at].second) {
          nodes_[found[at].first].live = Answer::yes;
          if (at == 0) return true;
        }
      }
      if (seen.emplace(to, true).second) found.emplace_back(to, i);
    }
  }
  if (found.size() > kMostSearched) {
    nodes_[a].live = Answer::no;
  } else {
    for (const auto& [dead, from] : found) nodes_[dead].live = Answer::no;
  }
  return false;
}

bool ExprPool::can_continue(ExprId a) {
  if (nodes_[a].continues == Answer::unknown) {
    const std::vector<ExprId> to = steps(a).to;
    bool continues = false;
    for (ExprId one : to) continues = continues || is_live(one);
    nodes_[a].continues = continues ? Answer::yes : Answer::no;
  }
  return nodes_[a].continues == Answer::yes;
}

}  // namespace quire::grammar
