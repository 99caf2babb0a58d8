#include "grammar/expr_pool.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/error.h"

namespace quire::grammar {
namespace {

constexpr uint32_t kMostSize = 1u << 30;
constexpr uint16_t kMostReach = 400;   // of recursion
constexpr size_t kMostParts = 10'000;  // alternatives that one state keeps in mind

uint32_t capped_sum(uint64_t a, uint64_t b) {
  return uint32_t(std::min<uint64_t>(kMostSize, a + b));
}

}  // namespace

ExprPool::ExprPool() {
  intern({.kind = Kind::nothing});
  intern({.kind = Kind::empty, .nullable = true});
  const ExprId all = complement(kNothing);
  CHECK(all == kAll);
}

void ExprPool::charge(size_t bytes) {
  used_bytes_ += bytes;
  if (used_bytes_ > kMostBytes)
    throw Error("the grammar is too complex: its patterns need more than {} MiB", kMostBytes >> 20);
}

uint64_t ExprPool::hash_of(const Node& node) {
  uint64_t hash = uint64_t(node.kind) + 1;
  const auto add = [&](uint64_t value) {
    hash = (hash ^ value) * 0x9E3779B97F4A7C15ull;
    hash ^= hash >> 29;
  };
  add(uint64_t(node.least) << 32 | node.most);
  for (ExprId part : node.parts) add(part);
  for (uint64_t word : node.set.words) add(word);
  add(node.numbers.modulus);
  add(node.numbers.remainder);
  add(uint64_t(uint32_t(node.numbers.scale)) << 32 | uint32_t(node.numbers.left));
  return hash;
}

bool ExprPool::same(const Node& a, const Node& b) {
  return a.kind == b.kind && a.least == b.least && a.most == b.most && a.parts == b.parts && a.set == b.set &&
         a.numbers == b.numbers;
}

ExprId ExprPool::intern(Node node) {
  const uint64_t hash = hash_of(node);
  const auto [begin, end] = by_hash_.equal_range(hash);
  for (auto found = begin; found != end; ++found) {
    if (same(nodes_[found->second], node)) return found->second;
  }
  for (ExprId part : node.parts) {
    const Node& child = nodes_[part];
    node.size = capped_sum(node.size, child.size);
    node.may_be_nothing = node.may_be_nothing || child.may_be_nothing;
  }
  if (node.kind != Kind::concat) {
    for (ExprId part : node.parts) node.reach = std::max<uint16_t>(node.reach, nodes_[part].reach + 1);
  } else {
    node.reach = nodes_[node.parts[0]].reach + 1;
    if (nodes_[node.parts[0]].nullable)
      node.reach = std::max<uint16_t>(node.reach, nodes_[node.parts[1]].reach + 1);
  }
  if (node.reach > kMostReach) throw Error("the grammar is too complex: a pattern is nested too deeply");
  if (node.kind == Kind::all_of || node.kind == Kind::complement || node.kind == Kind::multiples)
    node.may_be_nothing = true;
  node.finite = is_finite(node);
  const bool is_nothing = node.kind == Kind::nothing;
  node.live = is_nothing ? Answer::no : node.nullable || !node.may_be_nothing ? Answer::yes : Answer::unknown;
  charge(sizeof(Node) + node.parts.size() * sizeof(ExprId) + 64);
  const ExprId id = ExprId(nodes_.size());
  nodes_.push_back(std::move(node));
  steps_.emplace_back();
  by_hash_.emplace(hash, id);
  return id;
}

bool ExprPool::is_finite(const Node& node) const {
  const auto finite = [&](ExprId part) { return nodes_[part].finite; };
  switch (node.kind) {
    case Kind::complement:
    case Kind::multiples:
      return false;
    case Kind::all_of:
      return std::ranges::any_of(node.parts, finite);
    case Kind::repeat:
      return node.most != kNoMost && finite(node.parts[0]);
    default:
      return std::ranges::all_of(node.parts, finite);
  }
}

ExprId ExprPool::bytes(const ByteSet& set) {
  return set.empty() ? kNothing : intern({.kind = Kind::bytes, .set = set});
}

ExprId ExprPool::literal(std::string_view text) {
  ExprId result = kEmpty;
  for (size_t i = text.size(); i-- > 0;)
    result = concat(bytes(ByteSet::of(uint8_t(text[i]), uint8_t(text[i]))), result);
  return result;
}

ExprId ExprPool::literals(std::vector<std::string> texts) {
  std::ranges::sort(texts);
  texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
  // Backwards over the sorted texts: `tree[d]` is what follows the first d bytes of the text at hand, of it and those after it.
  std::vector<std::vector<ExprId>> tree(1);
  const auto fold = [&](std::string_view text, size_t down_to) {
    while (tree.size() > down_to + 1) {
      const ExprId rest = any_of(std::move(tree.back()));
      tree.pop_back();
      const uint8_t byte = uint8_t(text[tree.size() - 1]);
      tree.back().push_back(concat(bytes(ByteSet::of(byte, byte)), rest));
    }
  };
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::string& text = texts[i];
    tree.resize(text.size() + 1);
    tree.back().push_back(kEmpty);
    size_t common = 0;
    if (i + 1 < texts.size()) {
      const std::string& after = texts[i + 1];
      while (common < text.size() && common < after.size() && text[common] == after[common]) ++common;
    }
    fold(text, common);
  }
  return any_of(std::move(tree.front()));
}

ExprId ExprPool::concat(ExprId a, ExprId b) {
  if (a == kNothing || b == kNothing) return kNothing;
  if (a == kEmpty) return b;
  if (b == kEmpty) return a;
  if (a == kAll && b == kAll) return kAll;
  // Chains lean to the right, so that equal ones are found to be equal.
  std::vector<ExprId> heads;
  while (nodes_[a].kind == Kind::concat) {
    heads.push_back(nodes_[a].parts[0]);
    a = nodes_[a].parts[1];
  }
  heads.push_back(a);
  for (size_t i = heads.size(); i-- > 0;) {
    const bool nullable = nodes_[heads[i]].nullable && nodes_[b].nullable;
    b = intern({.kind = Kind::concat, .nullable = nullable, .parts = {heads[i], b}});
  }
  return b;
}

ExprId ExprPool::concat(std::span<const ExprId> parts) {
  ExprId result = kEmpty;
  for (size_t i = parts.size(); i-- > 0;) result = concat(parts[i], result);
  return result;
}

ExprId ExprPool::any_of(std::vector<ExprId> parts) {
  std::vector<ExprId> flat;
  ByteSet set;
  for (ExprId part : parts) {
    const Node& node = nodes_[part];
    if (part == kAll) return kAll;
    if (node.kind == Kind::any_of) {
      for (ExprId inner : node.parts) {
        if (nodes_[inner].kind == Kind::bytes) {
          set = set | nodes_[inner].set;
        } else {
          flat.push_back(inner);
        }
      }
    } else if (node.kind == Kind::bytes) {
      set = set | node.set;
    } else if (part != kNothing) {
      flat.push_back(part);
    }
  }
  if (!set.empty()) flat.push_back(bytes(set));
  std::ranges::sort(flat);
  flat.erase(std::unique(flat.begin(), flat.end()), flat.end());
  if (flat.empty()) return kNothing;
  if (flat.size() == 1) return flat[0];
  if (flat.size() > kMostParts) throw Error("the grammar is too complex: too many alternatives at once");
  if (flat.size() == 2 && flat[0] == kEmpty && nodes_[flat[1]].nullable) return flat[1];
  bool nullable = false;
  for (ExprId part : flat) nullable = nullable || nodes_[part].nullable;
  return intern({.kind = Kind::any_of, .nullable = nullable, .parts = std::move(flat)});
}

ExprId ExprPool::all_of(std::vector<ExprId> parts) {
  std::vector<ExprId> flat;
  for (ExprId part : parts) {
    if (part == kNothing) return kNothing;
    if (part == kAll) continue;
    if (nodes_[part].kind == Kind::all_of) {
      flat.insert(flat.end(), nodes_[part].parts.begin(), nodes_[part].parts.end());
    } else {
      flat.push_back(part);
    }
  }
  std::ranges::sort(flat);
  flat.erase(std::unique(flat.begin(), flat.end()), flat.end());
  if (flat.empty()) return kAll;
  if (flat.size() == 1) return flat[0];
  bool nullable = true;
  for (ExprId part : flat) nullable = nullable && nodes_[part].nullable;
  if (flat[0] == kEmpty) return nullable ? kEmpty : kNothing;
  return intern({.kind = Kind::all_of, .nullable = nullable, .parts = std::move(flat)});
}

ExprId ExprPool::complement(ExprId a) {
  if (nodes_[a].kind == Kind::complement) return nodes_[a].parts[0];
  return intern({.kind = Kind::complement, .nullable = !nodes_[a].nullable, .parts = {a}});
}

ExprId ExprPool::repeat(ExprId a, uint32_t least, uint32_t most) {
  if (most == 0 || a == kEmpty) return kEmpty;
  if (a == kNothing) return least == 0 ? kEmpty : kNothing;
  if (least == 1 && most == 1) return a;
  if (a == kAll) return kAll;
  if (nodes_[a].nullable) least = 0;
  if (nodes_[a].kind == Kind::repeat && nodes_[a].least == 0 && nodes_[a].most == kNoMost) return a;
  return intern({.kind = Kind::repeat, .nullable = least == 0, .least = least, .most = most, .parts = {a}});
}

ExprId ExprPool::multiples(const Multiples& numbers) {
  unsigned __int128 remainder = numbers.remainder;
  for (int32_t left = numbers.left < 0 ? numbers.scale : numbers.left; left > 0 && remainder != 0; --left)
    remainder = remainder * 10 % numbers.modulus;
  return intern({.kind = Kind::multiples, .nullable = remainder == 0, .numbers = numbers});
}

std::optional<ExprPool::FirstByte> ExprPool::first_byte(ExprId a) const {
  const Node& node = nodes_[a];
  if (node.kind == Kind::bytes) return FirstByte{node.set, kEmpty};
  if (node.kind != Kind::concat || nodes_[node.parts[0]].kind != Kind::bytes) return std::nullopt;
  return FirstByte{nodes_[node.parts[0]].set, node.parts[1]};
}

ExprId ExprPool::derive(ExprId a, uint8_t byte) {
  if (const auto first = first_byte(a)) return first->set.has(byte) ? first->after : kNothing;
  const Steps& table = steps(a);
  return table.to[table.class_of[byte]];
}

// Whatever may follow its first byte.
std::vector<ExprId> ExprPool::followers(ExprId a) {
  if (const auto first = first_byte(a)) return {first->after};
  return steps(a).to;
}

void ExprPool::refine_by(ExprId part, Steps& refined) {
  const auto first = first_byte(part);
  const Steps* const by = first ? nullptr : &steps(part);
  const auto class_in_part = [&](size_t byte) {
    return first ? uint8_t(first->set.has(uint8_t(byte))) : by->class_of[byte];
  };
  constexpr size_t kFew = 32;
  std::array<int16_t, kFew * kFew> table;  // of pairs of small classes: the new one
  table.fill(-1);
  std::vector<std::pair<std::pair<uint8_t, uint8_t>, uint8_t>> others;
  int next = 0;
  for (size_t byte = 0; byte < 256; ++byte) {
    const std::pair<uint8_t, uint8_t> both{refined.class_of[byte], class_in_part(byte)};
    if (both.first < kFew && both.second < kFew) {
      int16_t& known = table[both.first * kFew + both.second];
      if (known < 0) known = int16_t(next++);
      refined.class_of[byte] = uint8_t(known);
      continue;
    }
    auto found = std::ranges::find(others, both, [](const auto& entry) { return entry.first; });
    if (found == others.end()) found = others.insert(others.end(), {both, uint8_t(next++)});
    refined.class_of[byte] = found->second;
  }
}

const ExprPool::Steps& ExprPool::steps(ExprId a) {
  if (!steps_[a]) {
    auto made = std::make_unique<Steps>(make_steps(a));
    charge(sizeof(Steps) + made->to.size() * (sizeof(ExprId) + sizeof(ByteSet)) + 32);
    steps_[a] = std::move(made);
  }
  return *steps_[a];
}

ExprPool::Steps ExprPool::make_steps(ExprId a) {
  const Node node = nodes_[a];  // a copy: the list grows meanwhile
  Steps made;
  switch (node.kind) {
    case Kind::nothing:
    case Kind::empty:
      break;
    case Kind::bytes:
      for (int byte = 0; byte < 256; ++byte) made.class_of[byte] = node.set.has(uint8_t(byte)) ? 1 : 0;
      break;
    case Kind::concat:
      refine_by(node.parts[0], made);
      if (nodes_[node.parts[0]].nullable) refine_by(node.parts[1], made);
      break;
    case Kind::multiples:
      for (int digit = 0; digit < 10; ++digit) made.class_of['0' + digit] = uint8_t(1 + digit);
      made.class_of[uint8_t('.')] = 11;
      break;
    default:
      for (ExprId part : node.parts) refine_by(part, made);
  }
  std::array<int, 256> example;
  example.fill(-1);
  int classes = 0;
  for (int byte = 255; byte >= 0; --byte) {
    example[made.class_of[byte]] = byte;
    classes = std::max(classes, made.class_of[byte] + 1);
  }
  made.to.resize(size_t(classes), kNothing);
  made.bytes.resize(size_t(classes));
  for (int byte = 0; byte < 256; ++byte) made.bytes[made.class_of[byte]].add(uint8_t(byte));
  for (int c = 0; c < classes; ++c) {
    if (example[c] < 0) continue;  // no byte is of it
    const uint8_t byte = uint8_t(example[c]);
    ExprId& to = made.to[size_t(c)];
    std::vector<ExprId> parts;
    switch (node.kind) {
      case Kind::nothing:
      case Kind::empty:
        break;
      case Kind::bytes:
        to = c == 1 || node.set.has(byte) ? kEmpty : kNothing;
        break;
      case Kind::concat:
        parts.push_back(concat(derive(node.parts[0], byte), node.parts[1]));
        if (nodes_[node.parts[0]].nullable) parts.push_back(derive(node.parts[1], byte));
        to = any_of(std::move(parts));
        break;
      case Kind::any_of:
      case Kind::all_of:
        for (ExprId part : node.parts) parts.push_back(derive(part, byte));
        to = node.kind == Kind::any_of ? any_of(std::move(parts)) : all_of(std::move(parts));
        break;
      case Kind::complement:
        to = complement(derive(node.parts[0], byte));
        break;
      case Kind::repeat: {
        const uint32_t most = node.most == kNoMost ? kNoMost : node.most - 1;
        to = concat(derive(node.parts[0], byte),
                    repeat(node.parts[0], node.least == 0 ? 0 : node.least - 1, most));
        break;
      }
      case Kind::multiples: {
        Multiples after = node.numbers;
        if (byte == '.') {
          if (after.left < 0) {
            after.left = after.scale;
            to = multiples(after);
          }
        } else if (byte >= '0' && byte <= '9') {
          if (after.left == 0) {
            to = byte == '0' ? a : kNothing;
          } else {
            if (after.left > 0) --after.left;
            after.remainder = (after.remainder * 10 + uint64_t(byte - '0')) % after.modulus;
            to = multiples(after);
          }
        }
        break;
      }
    }
  }
  return made;
}

ExprId ExprPool::next(ExprId a, uint8_t byte) {
  const ExprId to = derive(a, byte);
  return is_live(to) ? to : kNothing;
}

ByteSet ExprPool::alike(ExprId a, uint8_t byte) {
  if (const auto first = first_byte(a)) return first->set.has(byte) ? first->set : first->set.complement();
  const Steps& table = steps(a);
  return table.bytes[table.class_of[byte]];
}

bool ExprPool::matches(ExprId a, std::string_view text) {
  for (char c : text) {
    a = derive(a, uint8_t(c));
    if (a == kNothing) return false;
  }
  return nullable(a);
}

}  // namespace quire::grammar
