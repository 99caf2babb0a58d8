#include <algorithm>
#include <cmath>
#include <optional>

#include "text/jinja/builtins.h"

namespace quire::jinja {
namespace {

constexpr int64_t kMaxWidth = 10'000;
constexpr int64_t kMaxPrecision = 100;

// How a value is to be written: the part after % or after the colon within braces.
struct FormatSpec {
  std::string_view fill = " ";
  char align = '\0';  // < > ^ =; none: by the type
  char sign = '\0';   // + or space
  bool comma = false;
  int64_t width = 0;
  int64_t precision = -1;
  char type = '\0';
};

// Digits from `position` on; bounded.
int64_t read_number(std::string_view text, size_t& position, int64_t limit) {
  int64_t number = 0;
  while (position < text.size() && text[position] >= '0' && text[position] <= '9') {
    number = number * 10 + (text[position++] - '0');
    if (number > limit) throw Failure("a format asks for more than {} characters", limit);
  }
  return number;
}

std::string group_thousands(std::string digits) {
  const size_t point = std::min(digits.find('.'), digits.size());
  for (size_t i = point; i > 3;) {
    i -= 3;
    digits.insert(i, 1, ',');
  }
  return digits;
}

// A number without its sign.
std::string write_magnitude(const Value& value, const FormatSpec& spec) {
  const bool whole = !value.is<double>();
  const auto precision = int(spec.precision < 0 ? 6 : spec.precision);
  const double real = std::fabs(as_double(value));
  switch (spec.type) {
    case 'f':
    case 'F':
      return fmt::format("{:.{}f}", real, precision);
    case 'e':
      return fmt::format("{:.{}e}", real, precision);
    case 'g':
      return fmt::format("{:.{}g}", real, precision);
    case '%':
      return fmt::format("{:.{}f}%", real * 100, precision);
    default:
      break;
  }
  if (!whole) return spec.precision >= 0 ? fmt::format("{:.{}g}", real, precision) : float_repr(real);
  const int64_t integer = as_integer(value, "");
  const uint64_t magnitude = integer < 0 ? 0 - uint64_t(integer) : uint64_t(integer);
  switch (spec.type) {
    case 'x':
      return fmt::format("{:x}", magnitude);
    case 'X':
      return fmt::format("{:X}", magnitude);
    case 'o':
      return fmt::format("{:o}", magnitude);
    case 'b':
      return fmt::format("{:b}", magnitude);
    default:
      return fmt::format("{}", magnitude);
  }
}

void append_fill(TextBuilder& out, const FormatSpec& spec, int64_t count) {
  for (int64_t i = 0; i < count; ++i) out.append(spec.fill, Origin::trusted);
}

// `body` padded to the width, its sign (if any) apart.
void append_padded(TextBuilder& out, const FormatSpec& spec, char default_align, const Text& body,
                   std::string_view sign) {
  const auto size = int64_t(count_chars(body.bytes) + sign.size());
  const int64_t missing = std::max<int64_t>(spec.width - size, 0);
  const char align = spec.align ? spec.align : default_align;
  const int64_t before = align == '>' ? missing : align == '^' ? missing / 2 : 0;
  append_fill(out, spec, before);
  out.append(sign, Origin::trusted);
  if (align == '=') append_fill(out, spec, missing);
  out.append(body);
  if (align != '=') append_fill(out, spec, missing - before);
}

void append_number(Heap& heap, TextBuilder& out, const FormatSpec& spec, const Value& value) {
  std::string magnitude = write_magnitude(value, spec);
  if (spec.comma) magnitude = group_thousands(std::move(magnitude));
  const bool negative = value.is<double>() ? std::signbit(value.get<double>()) : as_double(value) < 0;
  const std::string_view sign = negative ? "-" : std::string_view(&spec.sign, spec.sign ? 1 : 0);
  append_padded(out, spec, '>', *make_text(&heap, std::move(magnitude), Origin::trusted), sign);
}

void append_text(Heap& heap, TextBuilder& out, const FormatSpec& spec, TextRef text, char default_align) {
  if (spec.precision >= 0)
    text = slice_text(&heap, text, 0, char_position(text->bytes, size_t(spec.precision)));
  append_padded(out, spec, default_align, *text, "");
}

// --- '%s' % values

class PercentFormatter {
 public:
  PercentFormatter(Heap& heap, const Text& format, const Value& values)
      : heap_(heap), format_(format), values_(values) {
    const auto* sequence = values.get_if<SequenceRef>();
    if (sequence && (*sequence)->kind == SequenceKind::tuple) tuple_ = *sequence;
  }

  Value run() {
    const std::string_view bytes = format_.bytes;
    TextBuilder out(&heap_);
    size_t done = 0;
    while (true) {
      const size_t percent = bytes.find('%', done);
      out.append(format_, done, std::min(percent, bytes.size()));
      if (percent == std::string_view::npos) break;
      position_ = percent + 1;
      convert(out);
      done = position_;
    }
    const size_t expected = tuple_ ? tuple_->items.size() : 1;
    if (used_ < expected && !values_.is<DictRef>() && !(values_.is<SequenceRef>() && !tuple_)) {
      throw Failure("not all arguments converted during string formatting");
    }
    return out.finish();
  }

 private:
  char peek() const { return position_ < format_.bytes.size() ? format_.bytes[position_] : '\0'; }

  void convert(TextBuilder& out) {
    heap_.step();
    std::optional<Value> named;
    if (peek() == '(') named = read_named();
    FormatSpec spec;
    spec.align = '>';
    for (; std::string_view("-+ 0#").find(peek()) != std::string_view::npos && peek() != '\0'; ++position_) {
      if (peek() == '-') spec.align = '<';
      if (peek() == '0' && spec.align != '<') spec.fill = "0";
      if (peek() == '+' || peek() == ' ') spec.sign = peek();
    }
    spec.width = read_number(format_.bytes, position_, kMaxWidth);
    if (peek() == '.') {
      ++position_;
      spec.precision = read_number(format_.bytes, position_, kMaxPrecision);
    }
    spec.type = peek();
    if (spec.type == '\0') throw Failure("incomplete format");
    ++position_;
    if (spec.type == '%') {
      out.append("%", Origin::trusted);
      return;
    }
    append_value(out, spec, named ? *named : next_value());
  }

  Value read_named() {
    const size_t close = format_.bytes.find(')', position_);
    if (close == std::string::npos) throw Failure("incomplete format key");
    const auto* dict = values_.get_if<DictRef>();
    if (!dict) throw Failure("format requires a mapping");
    const std::string key = format_.bytes.substr(position_ + 1, close - position_ - 1);
    position_ = close + 1;
    const Value* found = (*dict)->find(key);
    if (!found) throw Failure("'{}'", key);
    return *found;
  }

  Value next_value() {
    if (used_ >= (tuple_ ? tuple_->items.size() : 1)) throw Failure("not enough arguments for format string");
    ++used_;
    return tuple_ ? tuple_->items[used_ - 1] : values_;
  }

  void append_value(TextBuilder& out, FormatSpec spec, const Value& value) {
    switch (spec.type) {
      case 's':
      case 'r':
      case 'a': {
        spec.fill = " ";
        const TextRef text =
            spec.type == 's'
                ? to_text(heap_, value)
                : make_text(&heap_, repr(heap_, value), value.has_plain() ? Origin::plain : Origin::trusted);
        append_text(heap_, out, spec, text, '>');
        return;
      }
      case 'd':
      case 'i':
      case 'u':
      case 'x':
      case 'X':
      case 'o':
      case 'f':
      case 'F':
      case 'e':
      case 'g':
        break;
      default:
        throw Failure("unsupported format character '{}'", spec.type);
    }
    if (!value.is_number()) {
      require_defined(value);
      throw Failure("%{} format: a real number is required, not {}", spec.type, value.type_name());
    }
    if (spec.fill == "0") spec.align = '=';
    const bool whole = std::string_view("diuxXo").find(spec.type) != std::string_view::npos;
    if (std::string_view("diu").find(spec.type) != std::string_view::npos) spec.type = 'd';
    if (whole && value.is<double>()) {
      const double real = std::trunc(value.get<double>());
      if (!(std::fabs(real) < 9e18)) throw Failure("a number is too large to format");
      append_number(heap_, out, spec, int64_t(real));
    } else {
      append_number(heap_, out, spec, value);
    }
  }

  Heap& heap_;
  const Text& format_;
  const Value& values_;
  SequenceRef tuple_;  // null: `values_` is the only one
  size_t used_ = 0;
  size_t position_ = 0;
};

// --- '{}'.format(values)

FormatSpec parse_spec(std::string_view text) {
  FormatSpec spec;
  size_t i = 0;
  const auto is_align = [&](size_t at) {
    return at < text.size() && std::string_view("<>^=").find(text[at]) != std::string_view::npos;
  };
  const size_t first = text.empty() ? 0 : char_bytes(text, 0);
  if (first > 0 && is_align(first)) {
    spec.fill = text.substr(0, first);
    spec.align = text[first];
    i = first + 1;
  } else if (is_align(0)) {
    spec.align = text[i++];
  }
  if (i < text.size() && (text[i] == '+' || text[i] == ' ' || text[i] == '-')) {
    spec.sign = text[i] == '-' ? '\0' : text[i];
    ++i;
  }
  if (i < text.size() && text[i] == '0') {
    ++i;
    if (!spec.align) {
      spec.fill = "0";
      spec.align = '=';
    }
  }
  spec.width = read_number(text, i, kMaxWidth);
  if (i < text.size() && text[i] == ',') {
    spec.comma = true;
    ++i;
  }
  if (i < text.size() && text[i] == '.') spec.precision = read_number(text, ++i, kMaxPrecision);
  if (i < text.size()) spec.type = text[i++];
  if (i != text.size()) throw Failure("Invalid format specifier '{}'", text.substr(0, 100));
  return spec;
}

// The value that a field names: `0`, `name`, `name.attribute`, `name[key]`, or the next one.
Value field_value(Call& call, std::string_view field, size_t& next) {
  const size_t end = std::min(field.find_first_of(".["), field.size());
  const std::string_view name = field.substr(0, end);
  Value value;
  if (name.empty() || std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; })) {
    size_t i = 0;
    const size_t index = name.empty() ? next++ : size_t(read_number(name, i, kMaxWidth));
    if (index >= call.rest.size())
      throw Failure("Replacement index {} out of range for positional args tuple", index);
    value = call.rest[index];
  } else {
    const auto found = std::find_if(call.named_rest.begin(), call.named_rest.end(),
                                    [&](const auto& each) { return each.first == name; });
    if (found == call.named_rest.end()) throw Failure("'{}'", name);
    value = found->second;
  }
  for (std::string_view path = field.substr(end); !path.empty();) {
    const bool subscript = path[0] == '[';
    const size_t stop = subscript ? path.find(']') : std::min(path.find_first_of(".[", 1), path.size());
    if (stop == std::string_view::npos) throw Failure("Missing ']' in format string");
    const std::string key(path.substr(1, stop - 1));
    const bool digits =
        !key.empty() && std::all_of(key.begin(), key.end(), [](char c) { return c >= '0' && c <= '9'; });
    size_t i = 0;
    value = subscript && digits ? call.interpreter.item(value, read_number(key, i, INT32_MAX))
                                : call.interpreter.attribute(value, key);
    require_defined(value);
    path.remove_prefix(std::min(stop + (subscript ? 1 : 0), path.size()));
  }
  return value;
}

void append_field(Call& call, TextBuilder& out, std::string_view field, size_t& next) {
  call.heap.step();
  const size_t colon = std::min(field.find(':'), field.size());
  std::string_view name = field.substr(0, colon);
  char conversion = '\0';
  if (const size_t mark = name.find('!'); mark != std::string_view::npos) {
    if (mark + 2 != name.size()) throw Failure("a conversion in a format is one letter");
    conversion = name[mark + 1];
    name = name.substr(0, mark);
  }
  const FormatSpec spec = parse_spec(field.substr(std::min(colon + 1, field.size())));
  const Value value = field_value(call, name, next);
  if (conversion == 'r') {
    const Origin origin = value.has_plain() ? Origin::plain : Origin::trusted;
    append_text(call.heap, out, spec, make_text(&call.heap, repr(call.heap, value), origin), '<');
  } else if (value.is_number() && conversion == '\0' && (!value.is<bool>() || spec.type != '\0')) {
    append_number(call.heap, out, spec, value);
  } else {
    append_text(call.heap, out, spec, to_text(call.heap, value), '<');
  }
}

}  // namespace

Value format_percent(Heap& heap, const Text& format, const Value& values) {
  return PercentFormatter(heap, format, values).run();
}

Value format_braces(Call& call, const Text& format) {
  const std::string_view bytes = format.bytes;
  TextBuilder out(&call.heap);
  size_t next = 0;
  for (size_t i = 0; i < bytes.size();) {
    const size_t brace = std::min(bytes.find_first_of("{}", i), bytes.size());
    out.append(format, i, brace);
    if (brace == bytes.size()) break;
    const bool doubled = brace + 1 < bytes.size() && bytes[brace + 1] == bytes[brace];
    if (doubled) {
      out.append(format, brace, brace + 1);
      i = brace + 2;
      continue;
    }
    const size_t close = bytes.find('}', brace);
    if (bytes[brace] == '}') throw Failure("Single '}}' encountered in format string");
    if (close == std::string_view::npos) throw Failure("expected '}}' before end of string");
    append_field(call, out, bytes.substr(brace + 1, close - brace - 1), next);
    i = close + 1;
  }
  return out.finish();
}

}  // namespace quire::jinja
