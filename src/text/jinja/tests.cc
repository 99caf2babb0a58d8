#include <array>

#include "text/jinja/builtins.h"

namespace quire::jinja {
namespace {

template <class T>
Value is_a(Call& call) {
  return call[0].is<T>();
}

Value is_sequence(Call& call) {
  const auto* sequence = call[0].get_if<SequenceRef>();
  return call[0].is_string() || call[0].is<DictRef>() || call[0].is_undefined() ||
         (sequence && (*sequence)->kind <= SequenceKind::range);
}

Value is_iterable(Call& call) {
  return call[0].is_string() || call[0].is<SequenceRef>() || call[0].is<DictRef>() || call[0].is_undefined();
}

Value is_callable(Call& call) {
  const auto* object = call[0].get_if<ObjectRef>();
  return object && (*object)->callable();
}

Value is_divisible(Call& call) {
  const int64_t divisor = as_integer(call[1], "divisibleby's argument");
  if (divisor == 0) throw Failure("integer modulo by zero");
  return divisor == -1 || as_integer(call[0], "divisibleby's value") % divisor == 0;
}

template <int kRemainder>
Value has_parity(Call& call) {
  return (as_integer(call[0], "the tested value") & 1) == kRemainder;
}

Value is_same(Call& call) {
  const Value& left = call[0];
  const Value& right = call[1];
  if (left.type_name() != right.type_name()) return false;
  if (const auto* text = left.get_if<TextRef>()) return *text == right.get<TextRef>();
  if (const auto* list = left.get_if<SequenceRef>()) return *list == right.get<SequenceRef>();
  if (const auto* dict = left.get_if<DictRef>()) return *dict == right.get<DictRef>();
  return equal(call.heap, left, right);
}

Value is_equal(Call& call) {
  return equal(call.heap, call[0], call[1]);
}
Value is_unequal(Call& call) {
  return !equal(call.heap, call[0], call[1]);
}
Value is_less(Call& call) {
  return compare(call.heap, call[0], call[1], "<") < 0;
}
Value is_at_most(Call& call) {
  return compare(call.heap, call[0], call[1], "<=") <= 0;
}
Value is_greater(Call& call) {
  return compare(call.heap, call[0], call[1], ">") > 0;
}
Value is_at_least(Call& call) {
  return compare(call.heap, call[0], call[1], ">=") >= 0;
}

constexpr std::array kTests = {
    Builtin{"defined", "value", [](Call& call) -> Value { return !call[0].is_undefined(); }},
    Builtin{"undefined", "value", is_a<Undefined>},
    Builtin{"none", "value", is_a<None>},
    Builtin{"string", "value", is_a<TextRef>},
    Builtin{"mapping", "value", is_a<DictRef>},
    Builtin{"boolean", "value", is_a<bool>},
    Builtin{"integer", "value", is_a<int64_t>},
    Builtin{"float", "value", is_a<double>},
    Builtin{"number", "value", [](Call& call) -> Value { return call[0].is_number(); }},
    Builtin{"sequence", "value", is_sequence},
    Builtin{"iterable", "value", is_iterable},
    Builtin{"callable", "value", is_callable},
    Builtin{"true", "value", [](Call& call) -> Value { return call[0].is<bool>() && call[0].get<bool>(); }},
    Builtin{"false", "value", [](Call& call) -> Value { return call[0].is<bool>() && !call[0].get<bool>(); }},
    Builtin{"sameas", "value other", is_same},
    Builtin{"eq", "value other", is_equal},
    Builtin{"equalto", "value other", is_equal},
    Builtin{"==", "value other", is_equal},
    Builtin{"ne", "value other", is_unequal},
    Builtin{"!=", "value other", is_unequal},
    Builtin{"lt", "value other", is_less},
    Builtin{"lessthan", "value other", is_less},
    Builtin{"<", "value other", is_less},
    Builtin{"le", "value other", is_at_most},
    Builtin{"<=", "value other", is_at_most},
    Builtin{"gt", "value other", is_greater},
    Builtin{"greaterthan", "value other", is_greater},
    Builtin{">", "value other", is_greater},
    Builtin{"ge", "value other", is_at_least},
    Builtin{">=", "value other", is_at_least},
    Builtin{"in", "value seq", [](Call& call) -> Value { return contains(call.heap, call[1], call[0]); }},
    Builtin{"divisibleby", "value num", is_divisible},
    Builtin{"odd", "value", has_parity<1>},
    Builtin{"even", "value", has_parity<0>},
    Builtin{"lower", "value",
            [](Call& call) -> Value { return all_chars_are(call.text(0)->bytes, CharClass::lower); }},
    Builtin{"upper", "value",
            [](Call& call) -> Value { return all_chars_are(call.text(0)->bytes, CharClass::upper); }},
    Builtin{"escaped", "value",
            [](Call& call) -> Value { return call[0].is_string() && call[0].text().markup; }},
    Builtin{
        "filter", "value",
        [](Call& call) -> Value { return find_filter(as_string(call[0], "a filter's name")) != nullptr; }},
    Builtin{"test", "value",
            [](Call& call) -> Value { return find_test(as_string(call[0], "a test's name")) != nullptr; }},
};

}  // namespace

std::span<const Builtin> tests() {
  return kTests;
}

}  // namespace quire::jinja
