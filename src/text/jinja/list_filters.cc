#include <algorithm>
#include <array>
#include <unordered_map>
#include <unordered_set>

#include "text/jinja/builtins.h"

namespace quire::jinja {
namespace {

bool is_digits(std::string_view text) {
  return !text.empty() && text.size() < 10 &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// The attribute of an item, which may be a path like `function.name` or `0`.
Value attribute_of(Call& call, Value item, const Value& path) {
  if (!path.is_string()) return call.interpreter.item(item, path);
  std::string_view rest = path.bytes();
  while (true) {
    const size_t dot = std::min(rest.find('.'), rest.size());
    const std::string_view part = rest.substr(0, dot);
    call.heap.step();
    item = is_digits(part) ? call.interpreter.item(item, std::stoi(std::string(part)))
                           : call.interpreter.item(item, make_string(&call.heap, std::string(part)));
    if (dot == rest.size()) return item;
    rest.remove_prefix(dot + 1);
  }
}

// Strings count as equal, and sort, whatever their case, unless asked otherwise.
Value sort_key(Call& call, const Value& item, bool case_sensitive) {
  if (case_sensitive || !item.is_string()) return item;
  return call.string(to_lower(item.bytes()), false);
}

// (key, item) for each, by the given attribute if there is one.
std::vector<std::pair<Value, Value>> keyed(Call& call, const Value& value, const Value* attribute,
                                           bool case_sensitive) {
  std::vector<std::pair<Value, Value>> result;
  const SequenceRef source = iterate(call.heap, value);
  for (const Value& item : source->items) {
    const Value by = attribute ? attribute_of(call, item, *attribute) : item;
    result.emplace_back(sort_key(call, by, case_sensitive), item);
  }
  return result;
}

enum class Order { ascending, descending };

void sort_keyed(Call& call, std::vector<std::pair<Value, Value>>& items, Order order) {
  // Equal ones keep their places in both orders, as with Python's sort.
  std::stable_sort(items.begin(), items.end(), [&](const auto& left, const auto& right) {
    const int sign = compare(call.heap, left.first, right.first);
    return order == Order::ascending ? sign < 0 : sign > 0;
  });
}

Value items_of(Call& call, std::vector<std::pair<Value, Value>> keyed_items, SequenceKind kind) {
  std::vector<Value> items;
  for (auto& each : keyed_items) items.push_back(std::move(each.second));
  return call.list(std::move(items), kind);
}

Value length_filter(Call& call) {
  const Value& value = call[0];
  if (const auto* text = value.get_if<TextRef>()) {
    call.heap.copy_bytes((*text)->bytes.size());
    return count_chars((*text)->bytes);
  }
  if (const auto* dict = value.get_if<DictRef>()) return (*dict)->entries.size();
  if (value.is_undefined()) return 0;
  const auto* sequence = value.get_if<SequenceRef>();
  if (!sequence || (*sequence)->kind == SequenceKind::generator) {
    throw Failure("object of type '{}' has no len()", value.type_name());
  }
  return (*sequence)->items.size();
}

Value first_filter(Call& call) {
  const SequenceRef items = iterate(call.heap, call[0]);
  return items->items.empty() ? make_undefined("No first item, sequence was empty.") : items->items.front();
}

Value last_filter(Call& call) {
  const SequenceRef items = iterate(call.heap, call[0]);
  return items->items.empty() ? make_undefined("No last item, sequence was empty.") : items->items.back();
}

Value list_filter(Call& call) {
  return call.list(iterate(call.heap, call[0])->items);
}

Value join_filter(Call& call) {
  std::vector<Value> items = iterate(call.heap, call[0])->items;
  if (call.has(2)) {
    for (Value& item : items) item = attribute_of(call, item, call[2]);
  }
  const TextRef separator = call.given[1] ? call.text(1) : make_text(&call.heap, {}, Origin::trusted);
  return join(call.heap, *separator, items);
}

Value reverse_filter(Call& call) {
  std::vector<Value> items = iterate(call.heap, call[0])->items;
  std::reverse(items.begin(), items.end());
  if (call[0].is_string()) return join(call.heap, Text{}, items);
  return call.list(std::move(items), SequenceKind::generator);
}

Value items_filter(Call& call) {
  if (call[0].is_undefined()) return call.list({}, SequenceKind::generator);
  const auto* dict = call[0].get_if<DictRef>();
  if (!dict) throw Failure("Can only get item pairs from a mapping.");
  std::vector<Value> items;
  for (const auto& [key, value] : (*dict)->entries)
    items.push_back(call.list({key, value}, SequenceKind::tuple));
  return call.list(std::move(items), SequenceKind::generator);
}

Value dictsort_filter(Call& call) {
  require_defined(call[0]);
  const auto* dict = call[0].get_if<DictRef>();
  if (!dict) throw Failure("dictsort wants a mapping, not '{}'", call[0].type_name());
  const std::string_view by = call.has(2) ? as_string(call[2], "dictsort's 'by'") : "key";
  if (by != "key" && by != "value") throw Failure("You can only sort by either \"key\" or \"value\"");
  std::vector<std::pair<Value, Value>> pairs;
  for (const auto& [key, value] : (*dict)->entries) {
    pairs.emplace_back(sort_key(call, by == "key" ? key : value, call.flag(1, false)),
                       call.list({key, value}, SequenceKind::tuple));
  }
  sort_keyed(call, pairs, call.flag(3, false) ? Order::descending : Order::ascending);
  return items_of(call, std::move(pairs), SequenceKind::list);
}

Value sort_filter(Call& call) {
  std::vector<std::pair<Value, Value>> items;
  const bool case_sensitive = call.flag(2, false);
  if (call.has(3) && call[3].is_string() && call[3].bytes().find(',') != std::string_view::npos) {
    // Several attributes, most important first.
    const SequenceRef source = iterate(call.heap, call[0]);
    for (const Value& item : source->items) {
      std::vector<Value> keys;
      std::string_view rest = call[3].bytes();
      while (!rest.empty()) {
        const size_t comma = std::min(rest.find(','), rest.size());
        const Value path = make_string(&call.heap, std::string(rest.substr(0, comma)));
        keys.push_back(sort_key(call, attribute_of(call, item, path), case_sensitive));
        rest.remove_prefix(std::min(comma + 1, rest.size()));
      }
      items.emplace_back(call.list(std::move(keys)), item);
    }
  } else {
    items = keyed(call, call[0], call.has(3) ? &call[3] : nullptr, case_sensitive);
  }
  sort_keyed(call, items, call.flag(1, false) ? Order::descending : Order::ascending);
  return items_of(call, std::move(items), SequenceKind::list);
}

Value unique_filter(Call& call) {
  std::unordered_set<std::string> seen;
  std::vector<Value> items;
  for (auto& [key, item] : keyed(call, call[0], call.has(2) ? &call[2] : nullptr, call.flag(1, false))) {
    if (seen.insert(hash_key(&call.heap, key)).second) items.push_back(item);
  }
  return call.list(std::move(items), SequenceKind::generator);
}

template <int kSign>
Value extreme_filter(Call& call) {
  const auto items = keyed(call, call[0], call.has(2) ? &call[2] : nullptr, call.flag(1, false));
  if (items.empty()) return make_undefined("No aggregated item, sequence was empty.");
  const auto* best = &items[0];
  for (const auto& each : items) {
    if (compare(call.heap, each.first, best->first) * kSign > 0) best = &each;
  }
  return best->second;
}

Value sum_filter(Call& call) {
  Value sum = call.given[2] ? call[2] : Value(0);
  const SequenceRef source = iterate(call.heap, call[0]);
  for (const Value& item : source->items) {
    call.heap.step();
    if (sum.is_string()) throw Failure("sum() can't sum strings [use ''.join(seq) instead]");
    sum = add(call.heap, sum, call.has(1) ? attribute_of(call, item, call[1]) : item);
  }
  return sum;
}

Value groupby_filter(Call& call) {
  auto items = keyed(call, call[0], &call[1], call.flag(3, false));
  for (auto& [key, item] : items) {
    if (key.is_undefined() && call.given[2]) key = call[2];
  }
  sort_keyed(call, items, Order::ascending);
  std::vector<Value> groups;
  for (size_t begin = 0; begin < items.size();) {
    size_t end = begin;
    std::vector<Value> members;
    while (end < items.size() && equal(call.heap, items[begin].first, items[end].first))
      members.push_back(items[end++].second);
    if (end == begin) members.push_back(items[end++].second);  // not even equal to itself: NaN
    const Value grouper = attribute_of(call, members[0], call[1]);
    groups.push_back(
        call.list({grouper.is_undefined() ? items[begin].first : grouper, call.list(std::move(members))},
                  SequenceKind::tuple));
    begin = end;
  }
  return call.list(std::move(groups));
}

// map and select take anything false for nothing.
SequenceRef items_or_none(Call& call) {
  return call[0].truthy() ? iterate(call.heap, call[0]) : make_sequence(&call.heap, {});
}

Value map_filter(Call& call) {
  std::vector<Value> results;
  const SequenceRef items = items_or_none(call);
  if (call.rest.empty()) {
    const Value* path = nullptr;
    const Value* otherwise = nullptr;
    for (const auto& [name, value] : call.named_rest) {
      if (name == "attribute") path = &value;
      if (name == "default") otherwise = &value;
    }
    if (!path) throw Failure("map requires a filter argument");
    for (const Value& item : items->items) {
      Value result = attribute_of(call, item, *path);
      results.push_back(result.is_undefined() && otherwise ? *otherwise : std::move(result));
    }
  } else {
    const std::string name(as_string(call.rest[0], "map's filter"));
    for (const Value& item : items->items) {
      call.heap.step();
      Arguments arguments{{item}, call.named_rest};
      arguments.positional.insert(arguments.positional.end(), call.rest.begin() + 1, call.rest.end());
      results.push_back(call.interpreter.filter(name, std::move(arguments)));
    }
  }
  return call.list(std::move(results), SequenceKind::generator);
}

enum class Keep { passing, failing };

Value filter_items(Call& call, Keep keep, const Value* path) {
  std::vector<Value> kept;
  const size_t test_at = path ? 1 : 0;
  const SequenceRef items = items_or_none(call);
  for (const Value& item : items->items) {
    call.heap.step();
    const Value tested = path ? attribute_of(call, item, *path) : item;
    bool passes = false;
    if (call.rest.size() <= test_at) {
      passes = tested.truthy();
    } else {
      Arguments arguments{{tested}, call.named_rest};
      arguments.positional.insert(arguments.positional.end(), call.rest.begin() + ptrdiff_t(test_at) + 1,
                                  call.rest.end());
      passes = call.interpreter.test(as_string(call.rest[test_at], "the test's name"), std::move(arguments));
    }
    if (passes == (keep == Keep::passing)) kept.push_back(item);
  }
  return call.list(std::move(kept), SequenceKind::generator);
}

template <Keep kKeep>
Value select_filter(Call& call) {
  return filter_items(call, kKeep, nullptr);
}

template <Keep kKeep>
Value select_attribute_filter(Call& call) {
  if (call.rest.empty()) throw Failure("Missing parameter for attribute name");
  return filter_items(call, kKeep, &call.rest[0]);
}

Value batch_filter(Call& call) {
  const int64_t size = as_integer(call[1], "batch's size");
  if (size < 1) throw Failure("batch's size must be at least 1");
  const auto& items = iterate(call.heap, call[0]);
  std::vector<Value> batches;
  for (size_t begin = 0; begin < items->items.size(); begin += size_t(size)) {
    const size_t end = std::min(items->items.size() - begin, size_t(size)) + begin;
    std::vector<Value> batch(items->items.begin() + ptrdiff_t(begin), items->items.begin() + ptrdiff_t(end));
    if (call.has(2)) {
      call.heap.check_room((size_t(size) - batch.size()) > (SIZE_MAX >> 8)
                               ? SIZE_MAX
                               : (size_t(size) - batch.size()) * sizeof(Value));
      batch.resize(size_t(size), call[2]);
    }
    batches.push_back(call.list(std::move(batch)));
  }
  return call.list(std::move(batches), SequenceKind::generator);
}

Value slice_filter(Call& call) {
  const int64_t count = as_integer(call[1], "slice's count");
  const SequenceRef items = iterate(call.heap, call[0]);
  if (count < 1 || count > 100'000) throw Failure("slice's count must be between 1 and 100000");
  const size_t size = items->items.size();
  const size_t each = size / size_t(count);
  const size_t longer = size % size_t(count);
  std::vector<Value> slices;
  size_t begin = 0;
  for (size_t i = 0; i < size_t(count); ++i) {
    const size_t end = begin + each + (i < longer ? 1 : 0);
    std::vector<Value> slice(items->items.begin() + ptrdiff_t(begin), items->items.begin() + ptrdiff_t(end));
    if (call.has(2) && i >= longer) slice.push_back(call[2]);
    slices.push_back(call.list(std::move(slice)));
    begin = end;
  }
  return call.list(std::move(slices), SequenceKind::generator);
}

constexpr std::array kListFilters = {
    Builtin{"length", "value", length_filter},
    Builtin{"count", "value", length_filter},
    Builtin{"first", "seq", first_filter},
    Builtin{"last", "seq", last_filter},
    Builtin{"list", "value", list_filter},
    Builtin{"join", "value d? attribute?", join_filter},
    Builtin{"reverse", "value", reverse_filter},
    Builtin{"items", "value", items_filter},
    Builtin{"dictsort", "value case_sensitive? by? reverse?", dictsort_filter},
    Builtin{"sort", "value reverse? case_sensitive? attribute?", sort_filter},
    Builtin{"unique", "value case_sensitive? attribute?", unique_filter},
    Builtin{"min", "value case_sensitive? attribute?", extreme_filter<-1>},
    Builtin{"max", "value case_sensitive? attribute?", extreme_filter<1>},
    Builtin{"sum", "iterable attribute? start?", sum_filter},
    Builtin{"groupby", "value attribute default? case_sensitive?", groupby_filter},
    Builtin{"map", "(value) * **", map_filter},
    Builtin{"select", "(value) * **", select_filter<Keep::passing>},
    Builtin{"reject", "(value) * **", select_filter<Keep::failing>},
    Builtin{"selectattr", "(value) * **", select_attribute_filter<Keep::passing>},
    Builtin{"rejectattr", "(value) * **", select_attribute_filter<Keep::failing>},
    Builtin{"batch", "value linecount fill_with?", batch_filter},
    Builtin{"slice", "value slices fill_with?", slice_filter},
    Builtin{
        "attr", "obj name",
        [](Call& call) { return call.interpreter.attribute(call[0], as_string(call[1], "attr's name")); }},
};

}  // namespace

std::span<const Builtin> list_filters() {
  return kListFilters;
}

}  // namespace quire::jinja
