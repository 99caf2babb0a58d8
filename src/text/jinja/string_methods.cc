#include <algorithm>
#include <array>
#include <optional>

#include "text/jinja/builtins.h"

namespace quire::jinja {

namespace {

const TextRef& self_text(Call& call) {
  return call[0].get<TextRef>();
}

// Of the same kind as the string it is made from; wholly plain if part of that was.
Value remade(Call& call, std::string bytes) {
  const Value result = call.string(std::move(bytes), call[0].has_plain());
  return self_text(call)->markup ? as_markup(&call.heap, result.text()) : result;
}

template <std::string (*kChange)(std::string_view)>
Value change_case(Call& call) {
  call.heap.copy_bytes(self_text(call)->bytes.size());
  return remade(call, kChange(self_text(call)->bytes));
}

template <CharClass kClass>
Value test_chars(Call& call) {
  call.heap.copy_bytes(self_text(call)->bytes.size());
  return all_chars_are(self_text(call)->bytes, kClass);
}

template <bool kLeft, bool kRight>
Value strip_method(Call& call) {
  return strip(call.heap, self_text(call), call.has(1) ? &call[1] : nullptr, kLeft, kRight);
}

// Splits at runs of whitespace, as split() does without a separator.
std::vector<Value> split_at_space(Call& call, int64_t limit) {
  const TextRef& text = self_text(call);
  const std::string_view bytes = text->bytes;
  std::vector<Value> parts;
  const auto skip = [&](size_t i, bool space) {
    while (i < bytes.size()) {
      size_t length = 1;
      if (is_space(char_at(bytes, i, &length)) != space) break;
      i += length;
    }
    return i;
  };
  for (size_t i = skip(0, true); i < bytes.size();) {
    const bool last = limit >= 0 && int64_t(parts.size()) == limit;
    const size_t end = last ? bytes.size() : skip(i, false);
    const Value part = slice_text(&call.heap, text, i, end);
    // The last part loses the whitespace at its end only when it is also cut there.
    parts.push_back(last ? strip(call.heap, part.get<TextRef>(), nullptr, false, true) : part);
    i = skip(end, true);
  }
  return parts;
}

std::vector<Value> split_at(Call& call, std::string_view separator, int64_t limit) {
  const TextRef& text = self_text(call);
  const std::string_view bytes = text->bytes;
  std::vector<Value> parts;
  size_t begin = 0;
  while (limit < 0 || int64_t(parts.size()) < limit) {
    const size_t found = find_bytes(bytes, separator, begin);
    if (found == std::string_view::npos) break;
    parts.push_back(slice_text(&call.heap, text, begin, found));
    begin = found + separator.size();
  }
  parts.push_back(slice_text(&call.heap, text, begin, bytes.size()));
  return parts;
}

std::vector<Value> split_from_right(Call& call, std::string_view separator, int64_t limit) {
  const TextRef& text = self_text(call);
  std::string_view bytes = text->bytes;
  std::vector<Value> parts;
  while (limit < 0 || int64_t(parts.size()) < limit) {
    const size_t found = rfind_bytes(call.heap, bytes, separator);
    if (found == std::string_view::npos) break;
    parts.push_back(slice_text(&call.heap, text, found + separator.size(), bytes.size()));
    bytes = bytes.substr(0, found);
  }
  parts.push_back(slice_text(&call.heap, text, 0, bytes.size()));
  std::reverse(parts.begin(), parts.end());
  return parts;
}

// rsplit() without a separator.
std::vector<Value> split_at_space_from_right(Call& call, int64_t limit) {
  std::vector<Value> parts = split_at_space(call, -1);
  if (limit < 0 || int64_t(parts.size()) <= limit + 1) return parts;
  // Everything before the last `limit` words is one part: find where the word before them ends.
  const TextRef& text = self_text(call);
  Value head = text;
  std::vector<Value> tail(parts.end() - ptrdiff_t(limit), parts.end());
  for (size_t i = tail.size(); i-- > 0;) {
    head = strip(call.heap, head.get<TextRef>(), nullptr, false, true);
    const TextRef& cut = head.get<TextRef>();
    head = Value(slice_text(&call.heap, cut, 0, cut->bytes.size() - tail[i].bytes().size()));
  }
  tail.insert(tail.begin(), strip(call.heap, head.get<TextRef>(), nullptr, true, true));
  return tail;
}

enum class From { left, right };

template <From kFrom>
Value split_method(Call& call) {
  call.heap.copy_bytes(self_text(call)->bytes.size());
  const int64_t limit = call.integer(2, -1);
  if (!call.has(1)) {
    return call.list(kFrom == From::left ? split_at_space(call, limit)
                                         : split_at_space_from_right(call, limit));
  }
  const std::string_view separator = as_string(call[1], "split's separator");
  if (separator.empty()) throw Failure("empty separator");
  return call.list(kFrom == From::left ? split_at(call, separator, limit)
                                       : split_from_right(call, separator, limit));
}

Value splitlines_method(Call& call) {
  const TextRef& text = self_text(call);
  const std::string_view bytes = text->bytes;
  call.heap.copy_bytes(bytes.size());
  std::vector<Value> lines;
  size_t begin = 0;
  for (size_t i = 0; i < bytes.size();) {
    size_t length = 1;
    const char32_t character = char_at(bytes, i, &length);
    if (!is_line_break(character)) {
      i += length;
      continue;
    }
    size_t next = i + length;
    if (character == '\r' && next < bytes.size() && bytes[next] == '\n') ++next;
    lines.push_back(slice_text(&call.heap, text, begin, call.flag(1, false) ? next : i));
    begin = i = next;
  }
  if (begin < bytes.size()) lines.push_back(slice_text(&call.heap, text, begin, bytes.size()));
  return call.list(std::move(lines));
}

template <From kFrom>
Value partition_method(Call& call) {
  const TextRef& text = self_text(call);
  const std::string_view separator = as_string(call[1], "partition's separator");
  if (separator.empty()) throw Failure("empty separator");
  call.heap.copy_bytes(text->bytes.size());
  const size_t found = kFrom == From::left ? find_bytes(text->bytes, separator)
                                           : rfind_bytes(call.heap, text->bytes, separator);
  if (found == std::string::npos) {
    const Value nothing = make_string(&call.heap, {});
    if (kFrom == From::left) return call.list({text, nothing, nothing}, SequenceKind::tuple);
    return call.list({nothing, nothing, text}, SequenceKind::tuple);
  }
  const size_t end = found + separator.size();
  return call.list({slice_text(&call.heap, text, 0, found), slice_text(&call.heap, text, found, end),
                    slice_text(&call.heap, text, end, text->bytes.size())},
                   SequenceKind::tuple);
}

// [start, end) in bytes, from the optional character positions in slots 2 and 3.
std::optional<std::pair<size_t, size_t>> window(Call& call) {
  const std::string_view bytes = self_text(call)->bytes;
  call.heap.copy_bytes(bytes.size());
  if (!call.has(2) && !call.has(3)) return std::pair(size_t(0), bytes.size());
  const auto size = int64_t(count_chars(bytes));
  const auto bound = [&](size_t slot, int64_t otherwise) {
    const int64_t index = call.integer(slot, otherwise);
    return index < 0 ? std::max<int64_t>(index + size, 0) : index;
  };
  const int64_t begin = bound(2, 0);
  const int64_t end = std::min(bound(3, size), size);
  if (begin > end) return std::nullopt;
  return std::pair(char_position(bytes, size_t(begin)), char_position(bytes, size_t(end)));
}

bool has_affix(Call& call, const Value& affix, bool at_start) {
  const std::string_view wanted = as_string(affix, "startswith's and endswith's argument");
  const auto range = window(call);
  if (!range) return false;
  const auto part =
      std::string_view(self_text(call)->bytes).substr(range->first, range->second - range->first);
  return at_start ? part.starts_with(wanted) : part.ends_with(wanted);
}

template <bool kAtStart>
Value affix_method(Call& call) {
  const auto* choices = call[1].get_if<SequenceRef>();
  if (!choices) return has_affix(call, call[1], kAtStart);
  return std::any_of((*choices)->items.begin(), (*choices)->items.end(),
                     [&](const Value& affix) { return has_affix(call, affix, kAtStart); });
}

template <bool kAtStart>
Value remove_affix_method(Call& call) {
  const TextRef& text = self_text(call);
  const std::string_view affix = as_string(call[1], "the affix");
  const std::string_view bytes = text->bytes;
  if (kAtStart ? !bytes.starts_with(affix) : !bytes.ends_with(affix)) return text;
  if (kAtStart) return slice_text(&call.heap, text, affix.size(), bytes.size());
  return slice_text(&call.heap, text, 0, bytes.size() - affix.size());
}

template <From kFrom>
Value find_method(Call& call) {
  const std::string_view wanted = as_string(call[1], "find's argument");
  const auto range = window(call);
  if (!range) return int64_t(-1);
  const std::string_view bytes = self_text(call)->bytes;
  const auto part = bytes.substr(range->first, range->second - range->first);
  const size_t found = kFrom == From::left ? find_bytes(part, wanted) : rfind_bytes(call.heap, part, wanted);
  if (found == std::string_view::npos) return int64_t(-1);
  return count_chars(bytes.substr(0, range->first + found));
}

template <From kFrom>
Value index_method(Call& call) {
  Value found = find_method<kFrom>(call);
  if (found.get<int64_t>() < 0) throw Failure("substring not found");
  return found;
}

Value count_method(Call& call) {
  const std::string_view wanted = as_string(call[1], "count's argument");
  const auto range = window(call);
  if (!range) return int64_t(0);
  const auto part =
      std::string_view(self_text(call)->bytes).substr(range->first, range->second - range->first);
  if (wanted.empty()) return count_chars(part) + 1;
  int64_t count = 0;
  for (size_t i = find_bytes(part, wanted); i != std::string_view::npos;
       i = find_bytes(part, wanted, i + wanted.size())) {
    call.heap.step();
    ++count;
  }
  return count;
}

Value replace_method(Call& call) {
  as_string(call[1], "replace's argument");
  as_string(call[2], "replace's argument");
  const Value result =
      replace(call.heap, *self_text(call), call[1].text(), call[2].text(), call.integer(3, -1));
  return self_text(call)->markup ? as_markup(&call.heap, result.text()) : result;
}

Value join_method(Call& call) {
  const SequenceRef items = iterate(call.heap, call[1]);
  for (size_t i = 0; i < items->items.size(); ++i) {
    if (!items->items[i].is_string()) {
      throw Failure("sequence item {}: expected str instance, {} found", i, items->items[i].type_name());
    }
  }
  return join(call.heap, *self_text(call), items->items);
}

enum class Side { left, right, center };

template <Side kSide>
Value pad_method(Call& call) {
  const TextRef& text = self_text(call);
  const auto size = int64_t(count_chars(text->bytes));
  const int64_t width = as_integer(call[1], "the width");
  if (width <= size) return text;
  const auto missing = size_t(width - size);
  const std::string fill(call.has(2) ? as_string(call[2], "the fill character") : " ");
  if (count_chars(fill) != 1) throw Failure("The fill character must be exactly one character long");
  call.heap.check_room(missing > SIZE_MAX / 4 ? SIZE_MAX : missing * fill.size());
  // Python puts the odd one of `center` to the left if the width is odd too.
  const size_t left = kSide == Side::left    ? missing
                      : kSide == Side::right ? 0
                                             : missing / 2 + (missing & size_t(width) & 1);
  TextBuilder builder(&call.heap);
  for (size_t i = 0; i < left; ++i) builder.append(fill, Origin::trusted);
  builder.append(*text);
  for (size_t i = left; i < missing; ++i) builder.append(fill, Origin::trusted);
  return builder.finish();
}

Value zfill_method(Call& call) {
  const TextRef& text = self_text(call);
  const auto size = int64_t(count_chars(text->bytes));
  const int64_t width = as_integer(call[1], "the width");
  if (width <= size) return text;
  call.heap.check_room(size_t(width - size));
  const size_t sign = text->bytes.starts_with('-') || text->bytes.starts_with('+') ? 1 : 0;
  TextBuilder builder(&call.heap);
  builder.append(*text, 0, sign);
  builder.append(std::string(size_t(width - size), '0'), Origin::trusted);
  builder.append(*text, sign, text->bytes.size());
  return builder.finish();
}

constexpr std::array kStringMethods = {
    Builtin{"strip", "(self) chars?", strip_method<true, true>},
    Builtin{"lstrip", "(self) chars?", strip_method<true, false>},
    Builtin{"rstrip", "(self) chars?", strip_method<false, true>},
    Builtin{"split", "(self) sep? maxsplit?", split_method<From::left>},
    Builtin{"rsplit", "(self) sep? maxsplit?", split_method<From::right>},
    Builtin{"splitlines", "(self) keepends?", splitlines_method},
    Builtin{"partition", "(self) sep", partition_method<From::left>},
    Builtin{"rpartition", "(self) sep", partition_method<From::right>},
    Builtin{"startswith", "(self) prefix start? end?", affix_method<true>},
    Builtin{"endswith", "(self) suffix start? end?", affix_method<false>},
    Builtin{"removeprefix", "(self) prefix", remove_affix_method<true>},
    Builtin{"removesuffix", "(self) suffix", remove_affix_method<false>},
    Builtin{"replace", "(self) old new count?", replace_method},
    Builtin{"upper", "(self)", change_case<to_upper>},
    Builtin{"lower", "(self)", change_case<to_lower>},
    Builtin{"casefold", "(self)", change_case<to_lower>},
    Builtin{"title", "(self)", change_case<to_title>},
    Builtin{"capitalize", "(self)", change_case<to_capitalized>},
    Builtin{"find", "(self) sub start? end?", find_method<From::left>},
    Builtin{"rfind", "(self) sub start? end?", find_method<From::right>},
    Builtin{"index", "(self) sub start? end?", index_method<From::left>},
    Builtin{"rindex", "(self) sub start? end?", index_method<From::right>},
    Builtin{"count", "(self) sub start? end?", count_method},
    Builtin{"join", "(self) iterable", join_method},
    Builtin{"format", "(self) * **", [](Call& call) { return format_braces(call, *self_text(call)); }},
    Builtin{"ljust", "(self) width fillchar?", pad_method<Side::right>},
    Builtin{"rjust", "(self) width fillchar?", pad_method<Side::left>},
    Builtin{"center", "(self) width fillchar?", pad_method<Side::center>},
    Builtin{"zfill", "(self) width", zfill_method},
    Builtin{"isdigit", "(self)", test_chars<CharClass::digit>},
    Builtin{"isdecimal", "(self)", test_chars<CharClass::decimal>},
    Builtin{"isnumeric", "(self)", test_chars<CharClass::numeric>},
    Builtin{"isalpha", "(self)", test_chars<CharClass::alpha>},
    Builtin{"isalnum", "(self)", test_chars<CharClass::alnum>},
    Builtin{"isspace", "(self)", test_chars<CharClass::space>},
    Builtin{"isupper", "(self)", test_chars<CharClass::upper>},
    Builtin{"islower", "(self)", test_chars<CharClass::lower>},
};

}  // namespace

std::span<const Builtin> string_methods() {
  return kStringMethods;
}

}  // namespace quire::jinja
