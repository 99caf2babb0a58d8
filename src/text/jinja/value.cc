#include "text/jinja/value.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace quire::jinja {
namespace {

constexpr size_t kIndexedEntries = 16;  // below this a search through the entries is faster

Origin origin_of(const Value& value) {
  return value.has_plain() ? Origin::plain : Origin::trusted;
}

}  // namespace

uint32_t deeper(uint32_t depth) {
  if (depth >= kMaxValueDepth) throw Failure("its values nest deeper than {} levels", kMaxValueDepth);
  return depth + 1;
}

bool Value::truthy() const {
  if (const auto* flag = get_if<bool>()) return *flag;
  if (const auto* integer = get_if<int64_t>()) return *integer != 0;
  if (const auto* real = get_if<double>()) return *real != 0;
  if (const auto* text = get_if<TextRef>()) return !(*text)->bytes.empty();
  if (const auto* dict = get_if<DictRef>()) return !(*dict)->entries.empty();
  if (const auto* sequence = get_if<SequenceRef>()) {
    return (*sequence)->kind == SequenceKind::generator || !(*sequence)->items.empty();
  }
  return is<ObjectRef>();
}

uint32_t Value::depth() const {
  if (const auto* sequence = get_if<SequenceRef>()) return (*sequence)->depth;
  if (const auto* dict = get_if<DictRef>()) return (*dict)->depth;
  if (const auto* object = get_if<ObjectRef>()) return (*object)->depth;
  return 0;
}

bool Value::has_plain() const {
  if (const auto* text = get_if<TextRef>()) return (*text)->has_plain();
  if (const auto* sequence = get_if<SequenceRef>()) return (*sequence)->has_plain;
  if (const auto* dict = get_if<DictRef>()) return (*dict)->has_plain;
  return false;
}

std::string_view Value::type_name() const {
  if (is<Undefined>()) return "Undefined";
  if (is<None>()) return "NoneType";
  if (is<bool>()) return "bool";
  if (is<int64_t>()) return "int";
  if (is<double>()) return "float";
  if (is<TextRef>()) return text().markup ? "Markup" : "str";
  if (is<DictRef>()) return "dict";
  if (const auto* object = get_if<ObjectRef>()) return (*object)->type_name();
  switch (get<SequenceRef>()->kind) {
    case SequenceKind::list:
      return "list";
    case SequenceKind::tuple:
      return "tuple";
    case SequenceKind::range:
      return "range";
    case SequenceKind::keys:
      return "dict_keys";
    case SequenceKind::values:
      return "dict_values";
    case SequenceKind::items:
      return "dict_items";
    case SequenceKind::generator:
      return "generator";
  }
  return "object";
}

namespace {

std::string string_key(std::string_view text) {
  std::string key(1, 's');
  key.append(text);
  return key;
}

}  // namespace

const Value* Dict::find(std::string_view key) const {
  if (index.empty()) {
    for (const auto& [name, value] : entries) {
      if (name.is_string() && name.bytes() == key) return &value;
    }
    return nullptr;
  }
  const auto place = index.find(string_key(key));
  return place == index.end() ? nullptr : &entries[place->second].second;
}

const Value* Dict::find(Heap& heap, const Value& key) const {
  if (key.is_string()) {
    heap.copy_bytes(key.bytes().size());
    return find(key.bytes());
  }
  const std::string wanted = hash_key(&heap, key);
  if (!index.empty()) {
    const auto place = index.find(wanted);
    return place == index.end() ? nullptr : &entries[place->second].second;
  }
  for (const auto& [name, value] : entries) {
    if (!name.is_string() && hash_key(&heap, name) == wanted) return &value;
  }
  return nullptr;
}

SequenceRef make_sequence(Heap* heap, std::vector<Value> items, SequenceKind kind) {
  if (heap) heap->step(1 + items.size() / 4);
  auto sequence = std::make_shared<Sequence>();
  uint32_t depth = 0;
  for (const Value& item : items) {
    depth = std::max(depth, item.depth());
    sequence->has_plain |= item.has_plain();
  }
  sequence->depth = deeper(depth);
  sequence->kind = kind;
  sequence->share = HeapShare(heap, sizeof(Sequence) + items.size() * sizeof(Value));
  sequence->items = std::move(items);
  return sequence;
}

DictRef make_dict(Heap* heap, std::vector<std::pair<Value, Value>> entries) {
  if (heap) heap->step(1 + entries.size());
  auto dict = std::make_shared<Dict>();
  std::unordered_map<std::string, size_t> index;
  uint32_t depth = 0;
  size_t key_bytes = 0;
  for (auto& [key, value] : entries) {
    depth = std::max({depth, key.depth(), value.depth()});
    std::string hashed = hash_key(heap, key);
    key_bytes += hashed.size();
    const auto [place, inserted] = index.emplace(std::move(hashed), dict->entries.size());
    dict->has_plain |= key.has_plain() || value.has_plain();
    if (inserted) {
      dict->entries.emplace_back(std::move(key), std::move(value));
    } else {
      dict->entries[place->second].second = std::move(value);
    }
  }
  dict->depth = deeper(depth);
  if (dict->entries.size() > kIndexedEntries) dict->index = std::move(index);
  dict->share = HeapShare(heap, sizeof(Dict) + dict->entries.size() * 2 * sizeof(Value) +
                                    (dict->index.empty() ? 0 : key_bytes + dict->index.size() * 64));
  return dict;
}

Value make_undefined(std::string reason) {
  return Undefined{std::make_shared<const std::string>(std::move(reason))};
}

std::string hash_key(Heap* heap, const Value& value) {
  if (heap) heap->copy_bytes(value.is_string() ? value.bytes().size() : 0);
  if (value.is_string()) return string_key(value.bytes());
  if (const auto* integer = value.get_if<int64_t>()) return fmt::format("i{}", *integer);
  if (const auto* flag = value.get_if<bool>()) return *flag ? "i1" : "i0";
  if (const auto* real = value.get_if<double>()) {
    if (*real == std::floor(*real) && std::fabs(*real) < 9e18) return fmt::format("i{}", int64_t(*real));
    return fmt::format("f{}", std::bit_cast<uint64_t>(*real));
  }
  if (value.is_none()) return "n";
  if (value.is_undefined()) return "u";
  if (const auto* object = value.get_if<ObjectRef>()) return fmt::format("o{}", fmt::ptr(object->get()));
  const auto* sequence = value.get_if<SequenceRef>();
  if (!sequence || (*sequence)->kind != SequenceKind::tuple) {
    throw Failure("unhashable type: '{}'", value.type_name());
  }
  // A tuple of tuples could be exponentially long when written out.
  if ((*sequence)->depth > 4) throw Failure("a key nests too deep");
  std::string key = fmt::format("t{}", (*sequence)->items.size());
  for (const Value& item : (*sequence)->items) {
    const std::string part = hash_key(heap, item);
    key += fmt::format(",{}:{}", part.size(), part);
    if (key.size() > size_t(1) << 20) throw Failure("a key is too long");
  }
  return key;
}

bool equal(Heap& heap, const Value& left, const Value& right) {
  heap.step();
  if (left.is_number() && right.is_number()) {
    if (left.is<double>() || right.is<double>()) return as_double(left) == as_double(right);
    return as_integer(left, "") == as_integer(right, "");
  }
  if (left.is_string() && right.is_string()) {
    if (left.bytes().size() != right.bytes().size()) return false;
    heap.copy_bytes(left.bytes().size());
    return left.bytes() == right.bytes();
  }
  if (const auto* a = left.get_if<SequenceRef>()) {
    const auto* b = right.get_if<SequenceRef>();
    if (!b || (*a)->kind != (*b)->kind || (*a)->items.size() != (*b)->items.size()) return false;
    return std::equal((*a)->items.begin(), (*a)->items.end(), (*b)->items.begin(),
                      [&](const Value& x, const Value& y) { return equal(heap, x, y); });
  }
  if (const auto* a = left.get_if<DictRef>()) {
    const auto* b = right.get_if<DictRef>();
    if (!b || (*a)->entries.size() != (*b)->entries.size()) return false;
    return std::all_of((*a)->entries.begin(), (*a)->entries.end(), [&](const auto& entry) {
      const Value* other = (*b)->find(heap, entry.first);
      return other && equal(heap, entry.second, *other);
    });
  }
  if (const auto* a = left.get_if<ObjectRef>()) {
    const auto* b = right.get_if<ObjectRef>();
    return b && *a == *b;
  }
  return (left.is_none() && right.is_none()) || (left.is_undefined() && right.is_undefined());
}

int compare(Heap& heap, const Value& left, const Value& right, std::string_view op) {
  heap.step();
  const auto order = [](const auto& a, const auto& b) { return a < b ? -1 : b < a ? 1 : 0; };
  if (left.is_number() && right.is_number()) {
    if (left.is<double>() || right.is<double>()) return order(as_double(left), as_double(right));
    return order(as_integer(left, ""), as_integer(right, ""));
  }
  if (left.is_string() && right.is_string()) {
    heap.copy_bytes(std::min(left.bytes().size(), right.bytes().size()));
    return order(left.bytes(), right.bytes());  // UTF-8 keeps the order of code points
  }
  const auto* a = left.get_if<SequenceRef>();
  const auto* b = right.get_if<SequenceRef>();
  if (a && b && (*a)->kind == (*b)->kind && (*a)->kind <= SequenceKind::tuple) {
    const size_t shared = std::min((*a)->items.size(), (*b)->items.size());
    for (size_t i = 0; i < shared; ++i) {
      if (equal(heap, (*a)->items[i], (*b)->items[i])) continue;
      return compare(heap, (*a)->items[i], (*b)->items[i], op);
    }
    return order((*a)->items.size(), (*b)->items.size());
  }
  require_defined(left);
  require_defined(right);
  throw Failure("'{}' not supported between instances of '{}' and '{}'", op, left.type_name(),
                right.type_name());
}

bool contains(Heap& heap, const Value& container, const Value& element) {
  if (container.is_string()) {
    if (!element.is_string()) {
      require_defined(element);
      throw Failure("'in <string>' requires string as left operand, not {}", element.type_name());
    }
    heap.copy_bytes(container.bytes().size());
    return find_bytes(container.bytes(), element.bytes()) != std::string_view::npos;
  }
  if (const auto* dict = container.get_if<DictRef>()) return (*dict)->find(heap, element) != nullptr;
  if (const auto* sequence = container.get_if<SequenceRef>()) {
    return std::any_of((*sequence)->items.begin(), (*sequence)->items.end(),
                       [&](const Value& item) { return equal(heap, item, element); });
  }
  if (container.is_undefined()) return false;
  throw Failure("argument of type '{}' is not iterable", container.type_name());
}

SequenceRef iterate(Heap& heap, const Value& value) {
  if (const auto* sequence = value.get_if<SequenceRef>()) return *sequence;
  std::vector<Value> items;
  if (const auto* dict = value.get_if<DictRef>()) {
    for (const auto& entry : (*dict)->entries) items.push_back(entry.first);
  } else if (const auto* text = value.get_if<TextRef>()) {
    const std::string& bytes = (*text)->bytes;
    heap.check_room(bytes.size() * (sizeof(Text) + sizeof(Value)));
    for (size_t i = 0; i < bytes.size();) {
      const size_t next = i + char_bytes(bytes, i);
      items.push_back(slice_text(&heap, *text, i, next));
      i = next;
    }
  } else if (!value.is_undefined()) {
    throw Failure("'{}' object is not iterable", value.type_name());
  }
  return make_sequence(&heap, std::move(items));
}

double as_double(const Value& number) {
  if (const auto* real = number.get_if<double>()) return *real;
  if (const auto* integer = number.get_if<int64_t>()) return double(*integer);
  return number.get<bool>() ? 1 : 0;
}

int64_t as_integer(const Value& value, std::string_view what) {
  if (const auto* integer = value.get_if<int64_t>()) return *integer;
  if (const auto* flag = value.get_if<bool>()) return *flag ? 1 : 0;
  require_defined(value);
  throw Failure("{} must be an integer, not '{}'", what, value.type_name());
}

std::string_view as_string(const Value& value, std::string_view what) {
  if (value.is_string()) return value.bytes();
  require_defined(value);
  throw Failure("{} must be a string, not '{}'", what, value.type_name());
}

void require_defined(const Value& value) {
  const auto* undefined = value.get_if<Undefined>();
  if (!undefined) return;
  throw Failure("{}", undefined->reason ? *undefined->reason : "a value is undefined");
}

TextRef to_text(Heap& heap, const Value& value) {
  if (const auto* text = value.get_if<TextRef>()) return *text;
  if (value.is_undefined()) return make_text(&heap, {}, Origin::trusted);
  return make_text(&heap, repr(heap, value), origin_of(value));
}

}  // namespace quire::jinja
