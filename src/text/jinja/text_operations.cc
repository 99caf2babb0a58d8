#include <algorithm>
#include <string>

#include "text/jinja/builtins.h"

// What filters and methods of strings have in common.

namespace quire::jinja {

Value strip(Heap& heap, const TextRef& text, const Value* chars, bool left, bool right) {
  const std::string_view bytes = text->bytes;
  heap.copy_bytes(bytes.size());
  std::u32string set;
  if (chars) {
    const std::string_view wanted = as_string(*chars, "strip's argument");
    constexpr size_t kMaxSet = 1000;  // it is searched for every character
    for (size_t i = 0; i < wanted.size() && set.size() < kMaxSet;) {
      size_t length = 1;
      set += char_at(wanted, i, &length);
      i += length;
    }
    heap.step(set.size());
  }
  const auto goes = [&](char32_t character) {
    return chars ? set.find(character) != std::u32string::npos : is_space(character);
  };
  size_t begin = 0;
  size_t end = bytes.size();
  while (left && begin < end) {
    size_t length = 1;
    if (!goes(char_at(bytes, begin, &length))) break;
    begin += length;
  }
  while (right && end > begin) {
    size_t start = end - 1;
    while (start > begin && (bytes[start] & 0xC0) == 0x80) --start;
    size_t length = 1;
    const char32_t character = char_at(bytes, start, &length);
    if (start + length != end || !goes(character)) break;
    end = start;
  }
  return slice_text(&heap, text, begin, end);
}

Value replace(Heap& heap, const Text& text, const Text& from, const Text& to, int64_t limit) {
  TextBuilder builder(&heap);
  const std::string_view bytes = text.bytes;
  heap.copy_bytes(bytes.size());
  size_t done = 0;
  size_t search = 0;
  for (int64_t count = 0; limit < 0 || count < limit; ++count) {
    if (search > bytes.size()) break;
    const size_t found = find_bytes(bytes, from.bytes, search);
    if (found == std::string_view::npos) break;
    heap.step();
    builder.append(text, done, found);
    builder.append(to);
    done = found + from.bytes.size();
    // Nothing is found between all characters, and at both ends.
    search = from.bytes.empty() ? found + (found < bytes.size() ? char_bytes(bytes, found) : 1) : done;
  }
  builder.append(text, std::min(done, bytes.size()), bytes.size());
  return builder.finish();
}

Value join(Heap& heap, const Text& separator, const std::vector<Value>& items) {
  TextBuilder builder(&heap);
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) builder.append(separator);
    builder.append(*to_text(heap, items[i]));
  }
  return builder.finish();
}
}  // namespace quire::jinja
