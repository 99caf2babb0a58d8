#include <algorithm>
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

// Whether each plain character belongs to it, whole.
bool ExprPool::covers_plain(ExprId a) {
  if (const auto known = covers_plain_.find(a); known != covers_plain_.end()) return known->second;
  const auto all = [&](const std::vector<ExprId>& from, uint8_t first, uint8_t last) {
    std::vector<ExprId> to;
    for (const ExprId one : from) {
      for (int byte = first; byte <= last; ++byte) {
        const ExprId next = derive(one, uint8_t(byte));
        if (std::ranges::find(to, next) == to.end()) to.push_back(next);
      }
    }
    return to;
  };
  const auto is_whole = [](const std::vector<ExprId>& to) { return to == std::vector{kEmpty}; };
  struct Form {
    uint8_t first, last, second_first, second_last;
    int more;  // bytes after the second
  };
  static constexpr Form kForms[] = {{0xC2, 0xDF, 0x80, 0xBF, 0}, {0xE0, 0xE0, 0xA0, 0xBF, 1},
                                    {0xE1, 0xEC, 0x80, 0xBF, 1}, {0xED, 0xED, 0x80, 0x9F, 1},
                                    {0xEE, 0xEF, 0x80, 0xBF, 1}, {0xF0, 0xF0, 0x90, 0xBF, 2},
                                    {0xF1, 0xF3, 0x80, 0xBF, 2}, {0xF4, 0xF4, 0x80, 0x8F, 2}};
  bool covers =
      is_whole(all({a}, 0x20, 0x21)) && is_whole(all({a}, 0x23, 0x5B)) && is_whole(all({a}, 0x5D, 0x7F));
  for (const Form& form : kForms) {
    if (!covers) break;
    std::vector<ExprId> at = all(all({a}, form.first, form.last), form.second_first, form.second_last);
    for (int i = 0; i < form.more && at.size() < 8; ++i) at = all(at, 0x80, 0xBF);
    covers = is_whole(at);
  }
  covers_plain_.emplace(a, covers);
  return covers;
}

bool ExprPool::begins_plain(ExprId a) {
  if (const auto known = begins_plain_.find(a); known != begins_plain_.end()) return known->second;
  bool begins = false;
  for (int byte = 0x20; byte < 256; ++byte) {
    if (byte != '"' && byte != '\\' && derive(a, uint8_t(byte)) != kNothing) begins = true;
  }
  begins_plain_.emplace(a, begins);
  return begins;
}

std::optional<uint32_t> ExprPool::plain_run(ExprId a) {
  ExprId run = a, rest = kEmpty;
  if (nodes_[a].kind == Kind::concat) {
    run = nodes_[a].parts[0];
    rest = nodes_[a].parts[1];
  }
  uint32_t most = 1;
  ExprId one = run;
  if (nodes_[run].kind == Kind::repeat) {
    one = nodes_[run].parts[0];
    most = nodes_[run].most;
  }
  if (nodes_[one].kind != Kind::any_of || !covers_plain(one) || begins_plain(rest)) return std::nullopt;
  return most;
}

}  // namespace quire::grammar
