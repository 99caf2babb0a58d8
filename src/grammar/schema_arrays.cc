#include <algorithm>
#include <map>

#include "base/error.h"
#include "grammar/schema_compiler.h"

namespace quire::grammar {
namespace {

constexpr size_t kMostArrayStates = 100'000, kMostContains = 3;
constexpr size_t kMostOrders = 8;  // values that may come in any order

// Where in an array: how many items there are, up to where it makes no difference, and of each `contains` how many.
using ArrayPlace = std::vector<uint64_t>;

}  // namespace

Symbol SchemaCompiler::array(const Goal& leaves) {
  uint64_t least = 0, most = Schema::kNoMost;
  size_t prefix = 0;
  bool is_unique = false;
  std::vector<std::pair<const Schema*, uint64_t>> contains;
  for (const Schema* leaf : leaves) {
    least = std::max(least, leaf->least_items);
    most = std::min(most, leaf->most_items);
    prefix = std::max(prefix, leaf->prefix.size());
    is_unique = is_unique || leaf->unique_items;
    contains.insert(contains.end(), leaf->contains.begin(), leaf->contains.end());
  }
  if (least > kMostArrayStates)
    throw Error("the schema's keyword 'minItems' cannot be more than {}", kMostArrayStates);
  if (contains.size() > kMostContains)
    throw Error("the schema's keyword 'contains' is used too often for one array");
  if (is_unique && most > 1) {
    if (prefix > 0 || !contains.empty())
      throw Error("the schema's keyword 'uniqueItems' cannot be used beside 'prefixItems' and 'contains'");
    return array_of_distinct(leaves, least, most);
  }
  const uint64_t last = most == Schema::kNoMost ? std::max<uint64_t>(prefix, least) : most;  // it stays there
  std::map<ArrayPlace, Symbol> known;
  std::vector<ArrayPlace> to_do;
  const auto symbol_at = [&](const ArrayPlace& place) {
    const auto [found, is_new] = known.emplace(place, Symbol{});
    if (is_new) {
      if (known.size() > kMostArrayStates)
        throw Error("the schema's keyword 'maxItems' is too large to count to");
      found->second = rules_.add_rule();
      to_do.push_back(place);
    }
    return found->second;
  };
  const Symbol first = symbol_at(ArrayPlace(1 + contains.size(), 0));
  while (!to_do.empty()) {
    const ArrayPlace place = std::move(to_do.back());
    to_do.pop_back();
    const Symbol symbol = known.at(place);
    const uint64_t index = place[0];
    const bool is_first = index == 0;
    bool may_close = index >= least;
    std::vector<size_t> missing;
    for (size_t c = 0; c < contains.size(); ++c) {
      if (place[1 + c] < contains[c].second) missing.push_back(c);
    }
    if (may_close && missing.empty()) {
      const ExprId end = pool_.literal("]");
      rules_.add(symbol, {Symbol::terminal(is_first ? end : join({space_, end}))});
    }
    // Where any number may follow, the first item is a place of its own: it has no comma before it.
    if (index >= most) continue;
    Goal item;
    for (const Schema* leaf : leaves)
      item.push_back(index < leaf->prefix.size() ? leaf->prefix[index] : leaf->items);
    for (uint32_t counted = 0; counted < 1u << missing.size(); ++counted) {
      Goal goal = item;
      ArrayPlace next = place;
      next[0] = most == Schema::kNoMost ? std::min(index + 1, std::max<uint64_t>(last, 1)) : index + 1;
      for (size_t m = 0; m < missing.size(); ++m) {
        if ((counted >> m & 1) == 0) continue;
        goal.push_back(contains[missing[m]].first);
        ++next[1 + missing[m]];
      }
      const Symbol before = Symbol::terminal(is_first ? ExprPool::kEmpty : comma());
      rules_.add(symbol, {before, value(std::move(goal)), symbol_at(next)});
    }
  }
  const Symbol whole = rules_.add_rule();
  rules_.add(whole, {Symbol::terminal(join({pool_.literal("["), space_})), first});
  return whole;
}

// Items that all come from a list of values: which of them have come is known.
Symbol SchemaCompiler::array_of_distinct(const Goal& leaves, uint64_t least, uint64_t most) {
  Goal item;
  for (const Schema* leaf : leaves) {
    if (leaf->items != nullptr) item.push_back(leaf->items);
  }
  std::optional<std::vector<OrderedJson>> values = listed(item);
  JsonTypes types = kAnyType;
  for (const Schema* one : item) types &= one->types;
  if (!values && (types & ~(kNull | kBoolean)) == 0) {
    values.emplace();
    for (const OrderedJson& value : {OrderedJson(nullptr), OrderedJson(false), OrderedJson(true)}) {
      if (std::ranges::all_of(item, [&](const Schema* one) { return validator_.holds(one, value); }))
        values->push_back(value);
    }
  }
  if (!values)
    throw Error("the schema's keyword 'uniqueItems' can be used where items come from an 'enum' only");
  std::vector<OrderedJson> distinct;
  for (const OrderedJson& value : *values) {
    if (std::ranges::none_of(distinct, [&](const OrderedJson& other) { return is_same_value(value, other); }))
      distinct.push_back(value);
  }
  // Of few values each may come at any time, of many in the list's order only.
  const bool any_order = distinct.size() <= kMostOrders;
  std::map<std::pair<uint64_t, uint64_t>, Symbol> known;  // by how many have come, and which, or the next
  std::vector<std::pair<uint64_t, uint64_t>> to_do;
  const auto symbol_at = [&](uint64_t count, uint64_t used) {
    const auto [found, is_new] = known.emplace(std::pair(count, used), Symbol{});
    if (is_new) {
      if (known.size() > kMostArrayStates)
        throw Error("the schema's keyword 'uniqueItems' has too many values to count");
      found->second = rules_.add_rule();
      to_do.emplace_back(count, used);
    }
    return found->second;
  };
  const Symbol first = symbol_at(0, 0);
  while (!to_do.empty()) {
    const auto [count, used] = to_do.back();
    to_do.pop_back();
    const Symbol symbol = known.at({count, used});
    const ExprId end = pool_.literal("]");
    if (count >= least) rules_.add(symbol, {Symbol::terminal(count == 0 ? end : join({space_, end}))});
    if (count >= most) continue;
    for (size_t v = any_order ? 0 : used; v < distinct.size(); ++v) {
      if (any_order && (used >> v & 1) != 0) continue;
      const ExprId item_text = literal(distinct[v]);
      const uint64_t next = any_order ? used | uint64_t(1) << v : v + 1;
      rules_.add(symbol, {Symbol::terminal(count == 0 ? item_text : join({comma(), item_text})),
                          symbol_at(count + 1, next)});
    }
  }
  const Symbol whole = rules_.add_rule();
  rules_.add(whole, {Symbol::terminal(join({pool_.literal("["), space_})), first});
  return whole;
}

}  // namespace quire::grammar
