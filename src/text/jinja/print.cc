#include <charconv>
#include <cmath>

#include "text/jinja/value.h"

namespace quire::jinja {
namespace {

void reserve_room(Heap& heap, const std::string& out, size_t more) {
  heap.copy_bytes(more);
  heap.check_room(out.size() + more);
}

// As Python quotes a string: with ' unless it holds one and no ".
void append_quoted(Heap& heap, std::string& out, std::string_view text) {
  reserve_room(heap, out, text.size() * 4 + 2);
  const bool has_single = text.find('\'') != std::string_view::npos;
  const char quote = has_single && text.find('"') == std::string_view::npos ? '"' : '\'';
  out += quote;
  for (size_t i = 0; i < text.size();) {
    size_t bytes = 1;
    const char32_t character = char_at(text, i, &bytes);
    if (character == char32_t(quote) || character == '\\') {
      out += '\\';
      out += char(character);
    } else if (character == '\n') {
      out += "\\n";
    } else if (character == '\r') {
      out += "\\r";
    } else if (character == '\t') {
      out += "\\t";
    } else if (character < 0x20 || (character >= 0x7F && character <= 0xA0) || character == 0xAD) {
      out += fmt::format("\\x{:02x}", uint32_t(character));
    } else if (character != 0x20 &&
               (is_space(character) || (character >= 0x200B && character <= 0x200F) || character == 0xFEFF)) {
      out += fmt::format("\\u{:04x}", uint32_t(character));
    } else {
      out += text.substr(i, bytes);
    }
    i += bytes;
  }
  out += quote;
}

template <class Items, class Each>
void append_joined(Heap& heap, std::string& out, const Items& items, Each&& each) {
  bool first = true;
  for (const auto& item : items) {
    reserve_room(heap, out, 2);
    if (!first) out += ", ";
    first = false;
    each(item);
  }
}

void append_sequence(Heap& heap, std::string& out, const Sequence& sequence, std::string_view type_name) {
  if (sequence.kind == SequenceKind::generator) {
    out += "<generator object>";
    return;
  }
  const bool tuple = sequence.kind == SequenceKind::tuple;
  const bool named = sequence.kind > SequenceKind::range;
  if (named) out += fmt::format("{}(", type_name);
  out += tuple ? '(' : '[';
  append_joined(heap, out, sequence.items, [&](const Value& item) { append_repr(heap, out, item); });
  if (tuple && sequence.items.size() == 1) out += ',';
  out += tuple ? ')' : ']';
  if (named) out += ')';
}

}  // namespace

std::string float_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  const std::string_view shortest(buffer, size_t(end - buffer));
  const size_t mark = shortest.find('e');
  const int exponent = std::stoi(std::string(shortest.substr(mark + 1)));
  if (exponent < -4 || exponent >= 16) return std::string(shortest);
  const auto fixed = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::fixed).ptr;
  std::string text(buffer, size_t(fixed - buffer));
  if (text.find('.') == std::string::npos) text += ".0";
  return text;
}

void append_repr(Heap& heap, std::string& out, const Value& value) {
  heap.step();
  if (const auto* text = value.get_if<TextRef>()) {
    if ((*text)->markup) out += "Markup(";
    append_quoted(heap, out, (*text)->bytes);
    if ((*text)->markup) out += ')';
  } else if (const auto* integer = value.get_if<int64_t>()) {
    out += fmt::format("{}", *integer);
  } else if (const auto* real = value.get_if<double>()) {
    out += float_repr(*real);
  } else if (const auto* flag = value.get_if<bool>()) {
    out += *flag ? "True" : "False";
  } else if (value.is_none()) {
    out += "None";
  } else if (value.is_undefined()) {
    out += "Undefined";
  } else if (const auto* sequence = value.get_if<SequenceRef>()) {
    append_sequence(heap, out, **sequence, value.type_name());
  } else if (const auto* dict = value.get_if<DictRef>()) {
    out += '{';
    append_joined(heap, out, (*dict)->entries, [&](const auto& entry) {
      append_repr(heap, out, entry.first);
      out += ": ";
      append_repr(heap, out, entry.second);
    });
    out += '}';
  } else {
    out += fmt::format("<{}>", value.type_name());
  }
}

std::string repr(Heap& heap, const Value& value) {
  std::string out;
  append_repr(heap, out, value);
  return out;
}

}  // namespace quire::jinja
