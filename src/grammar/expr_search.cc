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
  if (plain_texts(a).some || has_near_multiple(a)) {
    nodes_[a].live = Answer::yes;
    return true;
  }
  // By breadth: the nearest text that belongs to it. Whoever is on the way there is known from then on.
  std::vector<std::pair<ExprId, size_t>> found{{a, 0}};
  std::unordered_map<ExprId, bool> seen{{a, true}};
  for (size_t i = 0; i < found.size(); ++i) {
    if (found.size() > kMostSearched) break;
    const std::vector<ExprId> next = followers(found[i].first);
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
    const std::vector<ExprId> to = followers(a);
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

ExprPool::PlainTexts ExprPool::PlainTexts::operator|(const PlainTexts& other) const {
  return {some || other.some, all_but_few || other.all_but_few, always_more || other.always_more,
          always_a_way || other.always_a_way};
}

ExprPool::PlainTexts ExprPool::find_plain_texts(const Node& node) {
  PlainTexts texts;
  texts.some = node.nullable;
  switch (node.kind) {
    case Kind::nothing:
    case Kind::empty:
    case Kind::multiples:
      break;
    case Kind::bytes:
      for (int byte = 0x20; byte < 0x80; ++byte)
        texts.some = texts.some || (byte != '"' && byte != '\\' && node.set.has(uint8_t(byte)));
      break;
    case Kind::any_of:
      for (const ExprId part : node.parts) texts = texts | plain_texts(part);
      break;
    case Kind::all_of: {
      // Without a few, whoever has no end still has none.
      size_t with_more = 0;
      texts.all_but_few = true;
      for (const ExprId part : node.parts) {
        const PlainTexts of_part = plain_texts(part);
        if (of_part.all_but_few) continue;
        texts.all_but_few = false;
        with_more += of_part.always_more ? 1 : 2;
      }
      texts.always_more = with_more <= 1;
      break;
    }
    case Kind::complement:
      texts.all_but_few = nodes_[node.parts[0]].finite;
      break;
    case Kind::concat: {
      const PlainTexts head = plain_texts(node.parts[0]), tail = plain_texts(node.parts[1]);
      if (nodes_[node.parts[0]].nullable) texts = texts | tail;
      if (nodes_[node.parts[1]].nullable) texts = texts | head;
      texts.some = texts.some || (head.some && tail.some);
      texts.always_more = texts.always_more || (head.always_more && tail.some);
      texts.always_a_way = texts.always_a_way || (head.always_a_way && is_live(node.parts[1]));
      break;
    }
    case Kind::repeat: {
      const PlainTexts one = plain_texts(node.parts[0]);
      if (node.least <= 1) texts = texts | one;
      texts.some = texts.some || one.some;
      // Texts of fewer characters than the least are few.
      texts.all_but_few = texts.all_but_few || (node.most == kNoMost && covers_plain(node.parts[0]));
      texts.always_more = texts.always_more || one.always_more;
      break;
    }
  }
  texts.always_more = texts.always_more || texts.all_but_few;
  texts.always_a_way = texts.always_a_way || texts.always_more;
  texts.some = texts.some || texts.always_more;
  return texts;
}

ExprPool::PlainTexts ExprPool::plain_texts(ExprId a) {
  // A chain is gone through from its end, so that long ones need no depth.
  std::vector<ExprId> chain{a};
  while (nodes_[chain.back()].kind == Kind::concat && !plain_texts_.contains(chain.back()))
    chain.push_back(nodes_[chain.back()].parts[1]);
  PlainTexts texts;
  for (size_t i = chain.size(); i-- > 0;) {
    if (const auto known = plain_texts_.find(chain[i]); known != plain_texts_.end()) {
      texts = known->second;
      continue;
    }
    const Node node = nodes_[chain[i]];  // a copy: the list grows meanwhile
    texts = find_plain_texts(node);
    charge(sizeof(PlainTexts) + 32);
    plain_texts_.emplace(chain[i], texts);
  }
  return texts;
}

std::optional<uint32_t> ExprPool::plain_run(ExprId a) {
  if (plain_texts(a).always_a_way) return kNoMost;
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
