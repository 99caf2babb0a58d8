#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/eval.h"
#include "text/jinja/value.h"

namespace quire::jinja {

// A call of a builtin, its arguments sorted into the builtin's parameters.
struct Call {
  Interpreter& interpreter;
  Heap& heap;
  std::vector<Value> slots;  // one per parameter; undefined where not given
  std::vector<bool> given;
  std::vector<Value> rest;  // for builtins that take any number
  std::vector<std::pair<std::string, Value>> named_rest;

  const Value& operator[](size_t slot) const { return slots[slot]; }
  // Given, and not None.
  bool has(size_t slot) const { return given[slot] && !slots[slot].is_none(); }
  TextRef text(size_t slot) { return to_text(heap, slots[slot]); }
  int64_t integer(size_t slot, int64_t otherwise) const;
  bool flag(size_t slot, bool otherwise) const { return given[slot] ? slots[slot].truthy() : otherwise; }
  Value string(std::string bytes, bool plain) const {
    return make_string(&heap, std::move(bytes), plain ? Origin::plain : Origin::trusted);
  }
  Value list(std::vector<Value> items, SequenceKind kind = SequenceKind::list) const {
    return make_sequence(&heap, std::move(items), kind);
  }
};

// A filter, test, method or global function of Jinja or Python.
struct Builtin {
  std::string_view name;
  // Parameters by name; `x?` may be left out, `*` takes further positional arguments and `**` further named
  // ones.
  std::string_view parameters;
  Value (*function)(Call&);
};

const Builtin* find_filter(std::string_view name);
const Builtin* find_test(std::string_view name);
const Builtin* find_global(std::string_view name);
// A method of a string, list or dict; null if it has none of that name.
const Builtin* find_method(const Value& self, std::string_view name);
// Methods that would change a list or dict, which the sandbox forbids.
bool is_forbidden_method(const Value& self, std::string_view name);

Value invoke(Interpreter& interpreter, const Builtin& builtin, Arguments arguments);

// Tables of the files that define them.
std::span<const Builtin> text_filters();
std::span<const Builtin> list_filters();
std::span<const Builtin> tests();
std::span<const Builtin> globals();
std::span<const Builtin> string_methods();
std::span<const Builtin> sequence_methods();
std::span<const Builtin> dict_methods();

// 'format' % values
Value format_percent(Heap& heap, const Text& format, const Value& values);
// 'format'.format(...)
Value format_braces(Call& call, const Text& format);

// Shared by filters and methods.
Value strip(Heap& heap, const TextRef& text, const Value* chars, bool left, bool right);
Value replace(Heap& heap, const Text& text, const Text& from, const Text& to, int64_t limit);
Value join(Heap& heap, const Text& separator, const std::vector<Value>& items);

}  // namespace quire::jinja
