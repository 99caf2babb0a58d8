#include <array>
#include <charconv>
#include <cmath>

#include "text/jinja/builtins.h"
#include "text/jinja/json.h"

namespace quire::jinja {
namespace {

// A string made anew from a whole value: plain if any of that was.
template <std::string (*kChange)(std::string_view)>
Value filter_case(Call& call) {
  const TextRef text = call.text(0);
  call.heap.copy_bytes(text->bytes.size());
  const Value changed = call.string(kChange(text->bytes), text->has_plain());
  return text->markup ? as_markup(&call.heap, changed.text()) : changed;
}

// Jinja's title: words are separated by spaces, hyphens and opening brackets only.
std::string to_word_titles(std::string_view text) {
  std::string out;
  size_t begin = 0;
  const auto flush = [&](size_t end) {
    if (begin == end) return;
    const size_t first = char_bytes(text, begin);
    out += to_upper(text.substr(begin, first));
    out += to_lower(text.substr(begin + first, end - begin - first));
  };
  for (size_t i = 0; i < text.size();) {
    size_t length = 1;
    const char32_t character = char_at(text, i, &length);
    const bool separates =
        is_space(character) ||
        (character < 0x80 && std::string_view("-({[<").find(char(character)) != std::string_view::npos);
    if (separates) {
      flush(i);
      out += text.substr(i, length);
      begin = i + length;
    }
    i += length;
  }
  flush(text.size());
  return out;
}

Value trim_filter(Call& call) {
  return strip(call.heap, call.text(0), call.has(1) ? &call[1] : nullptr, true, true);
}

Value replace_filter(Call& call) {
  return replace(call.heap, *call.text(0), *call.text(1), *call.text(2), call.integer(3, -1));
}

Value indent_filter(Call& call) {
  const TextRef text = call.text(0);
  const std::string_view bytes = text->bytes;
  call.heap.copy_bytes(bytes.size());
  TextRef indention;
  if (call.has(1) && call[1].is_string()) {
    indention = call[1].get<TextRef>();
  } else {
    const int64_t width = call.integer(1, 4);
    call.heap.check_room(size_t(std::max<int64_t>(width, 0)));
    indention = make_text(&call.heap, std::string(size_t(std::max<int64_t>(width, 0)), ' '), Origin::trusted);
  }
  const bool blank = call.flag(3, false);
  TextBuilder out(&call.heap);
  if (call.flag(2, false)) out.append(*indention);
  size_t begin = 0;
  bool first = true;
  for (size_t i = 0; i <= bytes.size();) {
    size_t length = 1;
    const char32_t character = i < bytes.size() ? char_at(bytes, i, &length) : U'\n';
    if (!is_line_break(character)) {
      i += length;
      continue;
    }
    if (character == '\r' && i + 1 < bytes.size() && bytes[i + 1] == '\n') length = 2;
    if (!first) out.append("\n", Origin::trusted);
    if (!first && (blank || i > begin)) out.append(*indention);
    out.append(*text, begin, i);
    first = false;
    begin = i += length;
  }
  const TextRef result = out.finish();
  return text->markup ? as_markup(&call.heap, *result) : result;
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && is_space(char32_t(uint8_t(text.front())))) text.remove_prefix(1);
  while (!text.empty() && is_space(char32_t(uint8_t(text.back())))) text.remove_suffix(1);
  return text;
}

std::optional<double> parse_real(std::string_view text) {
  text = trimmed(text);
  if (text.starts_with('+')) text.remove_prefix(1);
  double real = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), real);
  if (text.empty() || stop != text.data() + text.size() || error != std::errc()) return std::nullopt;
  return real;
}

std::optional<int64_t> parse_whole(std::string_view text, int base) {
  text = trimmed(text);
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  const std::string_view prefix = base == 16 ? "0x" : base == 8 ? "0o" : base == 2 ? "0b" : "";
  if (!prefix.empty() && text.starts_with(prefix)) text.remove_prefix(2);
  if (text.empty() || text.starts_with('-')) return std::nullopt;
  int64_t integer = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), integer, base);
  if (stop != text.data() + text.size() || error != std::errc()) return std::nullopt;
  return negative ? -integer : integer;
}

std::optional<int64_t> whole_part(double real) {
  if (!(std::fabs(real) < 9.2e18)) return std::nullopt;
  return int64_t(real);
}

Value int_filter(Call& call) {
  const Value& value = call[0];
  require_defined(value);
  if (value.is<int64_t>() || value.is<bool>()) return as_integer(value, "");
  std::optional<int64_t> result;
  if (value.is<double>()) {
    result = whole_part(value.get<double>());
  } else if (value.is_string()) {
    const int64_t base = call.integer(2, 10);
    if (base < 2 || base > 36) throw Failure("int() base must be >= 2 and <= 36");
    result = parse_whole(value.bytes(), int(base));
    if (!result) {
      if (const auto real = parse_real(value.bytes())) result = whole_part(*real);
    }
  }
  if (result) return *result;
  return call.given[1] ? call[1] : Value(0);
}

Value float_filter(Call& call) {
  const Value& value = call[0];
  require_defined(value);
  if (value.is_number()) return as_double(value);
  if (value.is_string()) {
    if (const auto real = parse_real(value.bytes())) return *real;
  }
  return call.given[1] ? call[1] : Value(0.0);
}

Value round_filter(Call& call) {
  const Value& value = call[0];
  require_defined(value);
  if (!value.is_number()) throw Failure("type {} doesn't define __round__ method", value.type_name());
  const int64_t precision = call.integer(1, 0);
  if (precision < -300 || precision > 300) throw Failure("round's precision is out of range");
  const std::string_view method = call.has(2) ? as_string(call[2], "round's method") : "common";
  const double real = as_double(value);
  const double scale = std::pow(10.0, double(precision));
  if (method == "ceil") return std::ceil(real * scale) / scale;
  if (method == "floor") return std::floor(real * scale) / scale;
  if (method != "common") throw Failure("method must be common, ceil or floor");
  if (!value.is<double>()) {
    if (precision >= 0) return as_integer(value, "");
    return int64_t(std::nearbyint(real * scale) / scale);
  }
  if (!std::isfinite(real)) return real;
  if (precision < 0) return std::nearbyint(real * scale) / scale;
  // Python rounds the exact decimal value, which is what printing does.
  return *parse_real(fmt::format("{:.{}f}", real, int(precision)));
}

Value abs_filter(Call& call) {
  require_defined(call[0]);
  if (!call[0].is_number()) throw Failure("bad operand type for abs(): '{}'", call[0].type_name());
  if (const auto* real = call[0].get_if<double>()) return std::fabs(*real);
  return as_integer(call[0], "") < 0 ? negate(call[0]) : call[0];
}

Value default_filter(Call& call) {
  const bool use_default = call[0].is_undefined() || (call.flag(2, false) && !call[0].truthy());
  if (!use_default) return call[0];
  return call.given[1] ? call[1] : make_string(&call.heap, {});
}

Value tojson_filter(Call& call) {
  JsonStyle style;
  style.ensure_ascii = call.flag(1, false);
  if (call.has(2)) {
    if (call[2].is_string()) {
      style.indent = std::string(call[2].bytes());
    } else {
      const int64_t width = as_integer(call[2], "tojson's indent");
      if (width > 1000) throw Failure("tojson's indent is larger than 1000");
      style.indent = std::string(size_t(std::max<int64_t>(width, 0)), ' ');
    }
    style.item_separator = ",";
  }
  SequenceRef separators;  // owns what the style refers to
  if (call.has(3)) {
    separators = iterate(call.heap, call[3]);
    if (separators->items.size() != 2) throw Failure("tojson's separators must be two");
    style.item_separator = as_string(separators->items[0], "a separator");
    style.key_separator = as_string(separators->items[1], "a separator");
  }
  style.sort_keys = call.flag(4, false);
  return call.string(to_json(call.heap, call[0], style), call[0].has_plain());
}

Value safe_filter(Call& call) {
  return as_markup(&call.heap, *call.text(0));
}

Value escape_filter(Call& call) {
  const TextRef text = call.text(0);
  return text->markup ? text : escape_html(&call.heap, *text);
}

Value force_escape_filter(Call& call) {
  return escape_html(&call.heap, *call.text(0));
}

Value format_filter(Call& call) {
  if (call.named_rest.empty()) {
    return format_percent(call.heap, *call.text(0), call.list(std::move(call.rest), SequenceKind::tuple));
  }
  std::vector<std::pair<Value, Value>> entries;
  for (auto& [name, value] : call.named_rest)
    entries.emplace_back(make_string(&call.heap, name), std::move(value));
  return format_percent(call.heap, *call.text(0), make_dict(&call.heap, std::move(entries)));
}

Value wordcount_filter(Call& call) {
  const TextRef text = call.text(0);
  call.heap.copy_bytes(text->bytes.size());
  int64_t words = 0;
  bool inside = false;
  for (size_t i = 0; i < text->bytes.size();) {
    const size_t length = char_bytes(text->bytes, i);
    const std::string_view character = std::string_view(text->bytes).substr(i, length);
    const bool part = character == "_" || all_chars_are(character, CharClass::alnum);
    words += part && !inside;
    inside = part;
    i += length;
  }
  return words;
}

constexpr std::array kTextFilters = {
    Builtin{"upper", "s", filter_case<to_upper>},
    Builtin{"lower", "s", filter_case<to_lower>},
    Builtin{"title", "s", filter_case<to_word_titles>},
    Builtin{"capitalize", "s", filter_case<to_capitalized>},
    Builtin{"trim", "value chars?", trim_filter},
    Builtin{"replace", "s old new count?", replace_filter},
    Builtin{"indent", "s width? first? blank?", indent_filter},
    Builtin{"string", "value", [](Call& call) -> Value { return call.text(0); }},
    Builtin{"int", "value default? base?", int_filter},
    Builtin{"float", "value default?", float_filter},
    Builtin{"round", "value precision? method?", round_filter},
    Builtin{"abs", "x", abs_filter},
    Builtin{"default", "value default_value? boolean?", default_filter},
    Builtin{"d", "value default_value? boolean?", default_filter},
    Builtin{"tojson", "x ensure_ascii? indent? separators? sort_keys?", tojson_filter},
    Builtin{"safe", "value", safe_filter},
    Builtin{"escape", "value", escape_filter},
    Builtin{"e", "value", escape_filter},
    Builtin{"forceescape", "value", force_escape_filter},
    Builtin{"format", "(value) * **", format_filter},
    Builtin{"wordcount", "s", wordcount_filter},
};

}  // namespace

std::span<const Builtin> text_filters() {
  return kTextFilters;
}

}  // namespace quire::jinja
