#include <algorithm>
#include <cmath>

#include "text/jinja/builtins.h"
#include "text/jinja/eval.h"

namespace quire::jinja {
namespace {

[[noreturn]] void fail_operands(std::string_view op, const Value& left, const Value& right) {
  require_defined(left);
  require_defined(right);
  throw Failure("unsupported operand type(s) for {}: '{}' and '{}'", op, left.type_name(), right.type_name());
}

[[noreturn]] void fail_overflow() {
  throw Failure("a whole number does not fit into 64 bits");
}

bool is_whole(const Value& value) {
  return value.is<int64_t>() || value.is<bool>();
}

std::string_view spelling(BinaryOp op) {
  switch (op) {
    case BinaryOp::add:
      return "+";
    case BinaryOp::subtract:
      return "-";
    case BinaryOp::multiply:
      return "*";
    case BinaryOp::divide:
      return "/";
    case BinaryOp::floor_divide:
      return "//";
    case BinaryOp::modulo:
      return "%";
    case BinaryOp::power:
      return "** or pow()";
  }
  return "?";
}

int64_t power(int64_t base, int64_t exponent) {
  int64_t result = 1;
  while (exponent > 0) {
    if ((exponent & 1) && __builtin_mul_overflow(result, base, &result)) fail_overflow();
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) fail_overflow();
  }
  return result;
}

Value whole_arithmetic(BinaryOp op, int64_t left, int64_t right) {
  int64_t result = 0;
  switch (op) {
    case BinaryOp::add:
      if (__builtin_add_overflow(left, right, &result)) fail_overflow();
      return result;
    case BinaryOp::subtract:
      if (__builtin_sub_overflow(left, right, &result)) fail_overflow();
      return result;
    case BinaryOp::multiply:
      if (__builtin_mul_overflow(left, right, &result)) fail_overflow();
      return result;
    case BinaryOp::divide:
      return double(left) / double(right);
    case BinaryOp::floor_divide:
    case BinaryOp::modulo: {
      if (right == -1 && op == BinaryOp::floor_divide) return whole_arithmetic(BinaryOp::subtract, 0, left);
      if (right == -1) return int64_t(0);
      // Python rounds down, and the remainder has the sign of the divisor.
      int64_t quotient = left / right;
      int64_t remainder = left % right;
      if (remainder != 0 && (remainder < 0) != (right < 0)) {
        --quotient;
        remainder += right;
      }
      return op == BinaryOp::modulo ? remainder : quotient;
    }
    case BinaryOp::power:
      if (right < 0) return std::pow(double(left), double(right));
      return power(left, right);
  }
  return {};
}

Value real_arithmetic(BinaryOp op, double left, double right) {
  switch (op) {
    case BinaryOp::add:
      return left + right;
    case BinaryOp::subtract:
      return left - right;
    case BinaryOp::multiply:
      return left * right;
    case BinaryOp::divide:
      return left / right;
    case BinaryOp::floor_divide:
      return std::floor(left / right);
    case BinaryOp::modulo: {
      double remainder = std::fmod(left, right);
      if (remainder != 0 && (remainder < 0) != (right < 0)) remainder += right;
      return remainder;
    }
    case BinaryOp::power:
      return std::pow(left, right);
  }
  return {};
}

Value arithmetic(BinaryOp op, const Value& left, const Value& right) {
  const bool divides = op == BinaryOp::divide || op == BinaryOp::floor_divide || op == BinaryOp::modulo;
  if (divides && as_double(right) == 0) throw Failure("division by zero");
  if (is_whole(left) && is_whole(right))
    return whole_arithmetic(op, as_integer(left, ""), as_integer(right, ""));
  return real_arithmetic(op, as_double(left), as_double(right));
}

Value repeat(Heap& heap, const Value& value, int64_t count) {
  const auto times = size_t(std::max<int64_t>(count, 0));
  if (const auto* text = value.get_if<TextRef>()) {
    size_t bytes = 0;
    if (__builtin_mul_overflow((*text)->bytes.size(), times, &bytes)) bytes = SIZE_MAX;
    heap.check_room(bytes);
    TextBuilder builder(&heap);
    if ((*text)->has_plain()) {
      for (size_t i = 0; i < times; ++i) builder.append(**text);
    } else {
      std::string copies;
      copies.reserve(bytes);
      for (size_t i = 0; i < times && bytes > 0; ++i) copies += (*text)->bytes;
      builder.append(copies, Origin::trusted);
    }
    const TextRef repeated = builder.finish();
    return (*text)->markup ? as_markup(&heap, *repeated) : repeated;
  }
  const Sequence& sequence = *value.get<SequenceRef>();
  size_t bytes = 0;
  if (__builtin_mul_overflow(sequence.items.size() * sizeof(Value), times, &bytes)) bytes = SIZE_MAX;
  heap.check_room(bytes);
  std::vector<Value> items;
  for (size_t i = 0; i < times && bytes > 0; ++i)
    items.insert(items.end(), sequence.items.begin(), sequence.items.end());
  return make_sequence(&heap, std::move(items), sequence.kind);
}

bool is_repeatable(const Value& value) {
  const auto* sequence = value.get_if<SequenceRef>();
  return value.is_string() || (sequence && (*sequence)->kind <= SequenceKind::tuple);
}

}  // namespace

Value add(Heap& heap, const Value& left, const Value& right) {
  if (left.is_number() && right.is_number()) return arithmetic(BinaryOp::add, left, right);
  if (left.is_string() && right.is_string()) {
    const bool markup = left.text().markup || right.text().markup;
    const auto piece = [&](const Value& value) {
      return markup && !value.text().markup ? escape_html(&heap, value.text()) : value.get<TextRef>();
    };
    TextBuilder builder(&heap);
    builder.append(*piece(left));
    builder.append(*piece(right));
    return markup ? as_markup(&heap, *builder.finish()) : builder.finish();
  }
  const auto* a = left.get_if<SequenceRef>();
  const auto* b = right.get_if<SequenceRef>();
  if (a && b && (*a)->kind == (*b)->kind && (*a)->kind <= SequenceKind::tuple) {
    heap.check_room(((*a)->items.size() + (*b)->items.size()) * sizeof(Value));
    std::vector<Value> items = (*a)->items;
    items.insert(items.end(), (*b)->items.begin(), (*b)->items.end());
    return make_sequence(&heap, std::move(items), (*a)->kind);
  }
  if (left.is_string() && !right.is_undefined()) {
    throw Failure("can only concatenate str (not \"{}\") to str", right.type_name());
  }
  fail_operands("+", left, right);
}

Value binary(Interpreter& interpreter, BinaryOp op, const Value& left, const Value& right) {
  Heap& heap = interpreter.heap();
  if (op == BinaryOp::add) return add(heap, left, right);
  if (left.is_number() && right.is_number()) return arithmetic(op, left, right);
  if (op == BinaryOp::multiply) {
    if (is_repeatable(left) && is_whole(right)) return repeat(heap, left, as_integer(right, ""));
    if (is_repeatable(right) && is_whole(left)) return repeat(heap, right, as_integer(left, ""));
  }
  if (op == BinaryOp::modulo && left.is_string()) return format_percent(heap, left.text(), right);
  fail_operands(spelling(op), left, right);
}

Value negate(const Value& operand) {
  if (const auto* real = operand.get_if<double>()) return -*real;
  require_defined(operand);
  if (!is_whole(operand)) throw Failure("bad operand type for unary -: '{}'", operand.type_name());
  int64_t result = 0;
  if (__builtin_sub_overflow(int64_t(0), as_integer(operand, ""), &result)) fail_overflow();
  return result;
}

Value slice(Heap& heap, const Value& object, const Value& begin, const Value& end, const Value& step) {
  require_defined(object);
  const auto* text = object.get_if<TextRef>();
  const auto* sequence = object.get_if<SequenceRef>();
  if (!text && !(sequence && (*sequence)->kind <= SequenceKind::range)) {
    return make_undefined(fmt::format("'{} object' cannot be sliced", object.type_name()));
  }
  constexpr std::string_view kWhat = "slice indices";
  const int64_t stride = step.is_none() ? 1 : as_integer(step, kWhat);
  if (stride == 0) throw Failure("slice step cannot be zero");
  if (text) heap.copy_bytes((*text)->bytes.size());
  const auto size = int64_t(text ? count_chars((*text)->bytes) : (*sequence)->items.size());
  // As Python clamps them: within [0, size] going up, within [-1, size - 1] going down.
  const int64_t low = stride > 0 ? 0 : -1;
  const int64_t high = stride > 0 ? size : size - 1;
  const auto bound = [&](const Value& value, int64_t otherwise) {
    if (value.is_none()) return otherwise;
    const int64_t index = as_integer(value, kWhat);
    return std::clamp(index < 0 ? index + size : index, low, high);
  };
  const int64_t first = bound(begin, stride > 0 ? low : high);
  const int64_t last = bound(end, stride > 0 ? high : low);
  const bool empty = stride > 0 ? first >= last : first <= last;
  if (text && stride == 1) {
    if (empty) return make_string(&heap, {});
    const std::string_view bytes = (*text)->bytes;
    const size_t from = char_position(bytes, size_t(first));
    return slice_text(&heap, *text, from, from + char_position(bytes.substr(from), size_t(last - first)));
  }
  const SequenceRef items = iterate(heap, object);
  std::vector<Value> picked;
  for (int64_t i = first; !empty;) {
    picked.push_back(items->items[size_t(i)]);
    int64_t next = 0;
    if (__builtin_add_overflow(i, stride, &next)) break;
    i = next;
    if (stride > 0 ? i >= last : i <= last) break;
  }
  if (text) return join(heap, Text{}, picked);
  return make_sequence(&heap, std::move(picked),
                       (*sequence)->kind == SequenceKind::tuple ? SequenceKind::tuple : SequenceKind::list);
}

}  // namespace quire::jinja
