#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "text/jinja/heap.h"
#include "text/jinja/text.h"

namespace quire::jinja {

class Value;
class Interpreter;
struct Arguments;

// A name or attribute that is not there. Prints as nothing, is false, iterates over nothing; anything else
// done with it fails for `reason`.
struct Undefined {
  std::shared_ptr<const std::string> reason;
};
struct None {};

// Lists and their like. Immutable: templates run in a sandbox that forbids changing them.
enum class SequenceKind : uint8_t { list, tuple, range, keys, values, items, generator };
struct Sequence;
using SequenceRef = std::shared_ptr<const Sequence>;

struct Dict;
using DictRef = std::shared_ptr<const Dict>;

// Namespaces, macros, loops, methods: what is looked into or called, never printed for its contents.
class Object : public std::enable_shared_from_this<Object> {
 public:
  virtual ~Object() = default;
  virtual std::string_view type_name() const = 0;  // as Python would name it
  virtual bool callable() const { return false; }
  virtual Value call(Interpreter& interpreter, Arguments arguments);
  // Undefined if there is no such attribute.
  virtual Value attribute(Interpreter& interpreter, std::string_view name);

  uint32_t depth = 0;  // how deep the values nest that it owns
};
using ObjectRef = std::shared_ptr<Object>;

class Value {
 public:
  Value() = default;  // undefined
  Value(None none) : data_(none) {}
  Value(Undefined undefined) : data_(std::move(undefined)) {}
  template <std::same_as<bool> T>
  Value(T value) : data_(value) {}
  template <std::integral T>
  requires(!std::same_as<T, bool>) Value(T value) : data_(int64_t(value)) {}
  template <std::floating_point T>
  Value(T value) : data_(double(value)) {}
  Value(TextRef text) : data_(std::move(text)) {}
  Value(SequenceRef sequence) : data_(std::move(sequence)) {}
  Value(DictRef dict) : data_(std::move(dict)) {}
  Value(ObjectRef object) : data_(std::move(object)) {}

  template <class T>
  bool is() const {
    return std::holds_alternative<T>(data_);
  }
  template <class T>
  const T* get_if() const {
    return std::get_if<T>(&data_);
  }
  template <class T>
  const T& get() const {
    return std::get<T>(data_);
  }

  bool is_undefined() const { return is<Undefined>(); }
  bool is_none() const { return is<None>(); }
  bool is_string() const { return is<TextRef>(); }
  bool is_number() const { return is<int64_t>() || is<double>() || is<bool>(); }
  const Text& text() const { return *get<TextRef>(); }
  std::string_view bytes() const { return text().bytes; }  // REQUIRES: is_string()

  bool truthy() const;
  uint32_t depth() const;
  bool has_plain() const;              // some text inside came from the conversation
  std::string_view type_name() const;  // as Python names it: 'str', 'dict', 'NoneType'

 private:
  std::variant<Undefined, None, bool, int64_t, double, TextRef, SequenceRef, DictRef, ObjectRef> data_;
};

struct Sequence {
  std::vector<Value> items;
  SequenceKind kind = SequenceKind::list;
  uint32_t depth = 1;
  bool has_plain = false;
  HeapShare share;
};

// Keeps the order in which its keys were first given.
struct Dict {
  std::vector<std::pair<Value, Value>> entries;
  std::unordered_map<std::string, size_t> index;  // hash_key -> entry; empty while there are few entries
  uint32_t depth = 1;
  bool has_plain = false;
  HeapShare share;

  const Value* find(std::string_view key) const;          // null if there is none
  const Value* find(Heap& heap, const Value& key) const;  // throws Failure if the key cannot be hashed
};

// The depth of what holds values of depth `depth`; throws Failure beyond the bound.
uint32_t deeper(uint32_t depth);
SequenceRef make_sequence(Heap* heap, std::vector<Value> items, SequenceKind kind = SequenceKind::list);
// Of equal keys the last value counts, at the place of the first.
DictRef make_dict(Heap* heap, std::vector<std::pair<Value, Value>> entries);
Value make_undefined(std::string reason);
inline Value make_string(Heap* heap, std::string bytes, Origin origin = Origin::trusted) {
  return make_text(heap, std::move(bytes), origin);
}

// Equal values have equal keys. Throws Failure for lists and dicts, which cannot be hashed.
std::string hash_key(Heap* heap, const Value& value);

bool equal(Heap& heap, const Value& left, const Value& right);
// <0, 0, >0; throws Failure if they have no order. `op` is for the message.
int compare(Heap& heap, const Value& left, const Value& right, std::string_view op = "<");
bool contains(Heap& heap, const Value& container, const Value& element);

// What a for loop visits. Throws Failure for what cannot be iterated.
SequenceRef iterate(Heap& heap, const Value& value);

double as_double(const Value& number);                                  // REQUIRES: is_number()
int64_t as_integer(const Value& value, std::string_view what);          // throws Failure if it is not one
std::string_view as_string(const Value& value, std::string_view what);  // throws Failure if it is not one

// Fails for the reason that `value` is undefined, if it is.
void require_defined(const Value& value);

// str(value): a string is itself.
TextRef to_text(Heap& heap, const Value& value);
// repr(value)
void append_repr(Heap& heap, std::string& out, const Value& value);
std::string repr(Heap& heap, const Value& value);
std::string float_repr(double value);

}  // namespace quire::jinja
