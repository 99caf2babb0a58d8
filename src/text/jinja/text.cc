#include "text/jinja/text.h"

#include <algorithm>
#include <cstring>

#include <utf8proc.h>

namespace quire::jinja {

void TextBuilder::mark_plain(size_t begin, size_t end) {
  if (begin == end) return;
  if (!plain_.empty() && plain_.back().end == begin) {
    plain_.back().end = end;
  } else {
    share_.grow(sizeof(ByteRange));
    plain_.push_back({begin, end});
  }
}

void TextBuilder::append(std::string_view bytes, Origin origin) {
  if (heap_) heap_->copy_bytes(bytes.size());
  share_.grow(bytes.size());
  if (origin == Origin::plain) mark_plain(bytes_.size(), bytes_.size() + bytes.size());
  bytes_ += bytes;
}

void TextBuilder::append(const Text& text, size_t begin, size_t end) {
  const size_t base = bytes_.size();
  append(std::string_view(text.bytes).substr(begin, end - begin), Origin::trusted);
  auto range = std::partition_point(text.plain.begin(), text.plain.end(),
                                    [&](const ByteRange& candidate) { return candidate.end <= begin; });
  for (; range != text.plain.end() && range->begin < end; ++range) {
    mark_plain(base + std::max(range->begin, begin) - begin, base + std::min(range->end, end) - begin);
  }
}

TextRef TextBuilder::finish() {
  auto text = std::make_shared<Text>();
  text->bytes = std::move(bytes_);
  text->plain = std::move(plain_);
  text->share = std::move(share_);
  return text;
}

TextRef make_text(Heap* heap, std::string bytes, Origin origin) {
  if (heap) heap->copy_bytes(bytes.size());
  auto text = std::make_shared<Text>();
  text->bytes = std::move(bytes);
  if (origin == Origin::plain && !text->bytes.empty()) text->plain = {{0, text->bytes.size()}};
  text->share = HeapShare(heap, sizeof(Text) + text->bytes.size());
  return text;
}

TextRef slice_text(Heap* heap, const TextRef& text, size_t begin, size_t end) {
  if (begin == 0 && end == text->bytes.size()) return text;
  TextBuilder builder(heap);
  builder.append(*text, begin, end);
  const TextRef slice = builder.finish();
  return text->markup ? as_markup(heap, *slice) : slice;
}

TextRef as_markup(Heap* heap, const Text& text) {
  if (heap) heap->copy_bytes(text.bytes.size());
  auto copy = std::make_shared<Text>();
  copy->bytes = text.bytes;
  copy->plain = text.plain;
  copy->markup = true;
  copy->share = HeapShare(heap, sizeof(Text) + copy->bytes.size() + copy->plain.size() * sizeof(ByteRange));
  return copy;
}

TextRef escape_html(Heap* heap, const Text& text) {
  TextBuilder builder(heap);
  const Origin origin = text.has_plain() ? Origin::plain : Origin::trusted;
  size_t done = 0;
  const auto replace = [&](size_t position, std::string_view entity) {
    builder.append(text, done, position);
    builder.append(entity, origin);
    done = position + 1;
  };
  for (size_t i = 0; i < text.bytes.size(); ++i) {
    switch (text.bytes[i]) {
      case '&':
        replace(i, "&amp;");
        break;
      case '<':
        replace(i, "&lt;");
        break;
      case '>':
        replace(i, "&gt;");
        break;
      case '"':
        replace(i, "&#34;");
        break;
      case '\'':
        replace(i, "&#39;");
        break;
      default:
        break;
    }
  }
  builder.append(text, done, text.bytes.size());
  return as_markup(heap, *builder.finish());
}

char32_t char_at(std::string_view text, size_t position, size_t* bytes) {
  const auto* data = reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + position;
  if (data[0] < 0x80) {
    *bytes = 1;
    return data[0];
  }
  utf8proc_int32_t character = 0;
  const auto length = utf8proc_iterate(data, utf8proc_ssize_t(text.size() - position), &character);
  if (length <= 0) {
    *bytes = 1;
    return 0xFFFD;
  }
  *bytes = size_t(length);
  return char32_t(character);
}

size_t char_bytes(std::string_view text, size_t position) {
  size_t bytes = 1;
  char_at(text, position, &bytes);
  return bytes;
}

size_t count_chars(std::string_view text) {
  size_t count = 0;
  for (size_t i = 0; i < text.size(); i += char_bytes(text, i)) ++count;
  return count;
}

size_t char_position(std::string_view text, size_t index) {
  size_t position = 0;
  for (; index > 0 && position < text.size(); --index) position += char_bytes(text, position);
  return position;
}

void append_utf8(std::string& out, char32_t character) {
  utf8proc_uint8_t buffer[4];
  const auto length = utf8proc_encode_char(utf8proc_int32_t(character), buffer);
  out.append(reinterpret_cast<const char*>(buffer), size_t(length));
}

size_t find_bytes(std::string_view text, std::string_view wanted, size_t from) {
  if (from > text.size()) return std::string_view::npos;
  if (wanted.empty()) return from;
  // std::string_view::find takes the product of both sizes on unlucky texts.
  const void* found = memmem(text.data() + from, text.size() - from, wanted.data(), wanted.size());
  return found ? size_t(static_cast<const char*>(found) - text.data()) : std::string_view::npos;
}

size_t rfind_bytes(Heap& heap, std::string_view text, std::string_view wanted) {
  heap.copy_bytes(text.size());
  if (wanted.size() > 32) heap.step(text.size() / 16 * (wanted.size() / 32));
  return text.rfind(wanted);
}

bool is_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

bool is_line_break(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

namespace {

bool is_cased(utf8proc_category_t category) {
  return category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LL ||
         category == UTF8PROC_CATEGORY_LT;
}

bool is_letter(utf8proc_category_t category) {
  return is_cased(category) || category == UTF8PROC_CATEGORY_LM || category == UTF8PROC_CATEGORY_LO;
}

bool is_number(utf8proc_category_t category) {
  return category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL ||
         category == UTF8PROC_CATEGORY_NO;
}

// Digits that are no decimals: superscripts, subscripts, circled ones.
bool is_superscript(char32_t c) {
  return c == 0xB2 || c == 0xB3 || c == 0xB9 || c == 0x2070 || (c >= 0x2074 && c <= 0x2079) ||
         (c >= 0x2080 && c <= 0x2089) || (c >= 0x2460 && c <= 0x2468);
}

utf8proc_category_t category_of(char32_t character) {
  return utf8proc_category(utf8proc_int32_t(character));
}

// Calls visit(character, bytes); a broken byte is passed on as it is.
template <class Visit>
std::string map_chars(std::string_view text, Visit&& visit) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    size_t bytes = 1;
    const char32_t character = char_at(text, i, &bytes);
    if (bytes == 1 && character >= 0x80) {
      out += text[i];
    } else {
      visit(out, character);
    }
    i += bytes;
  }
  return out;
}

void append_upper(std::string& out, char32_t character) {
  if (character == 0xDF) {
    out += "SS";
  } else {
    append_utf8(out, char32_t(utf8proc_toupper(utf8proc_int32_t(character))));
  }
}

void append_lower(std::string& out, char32_t character) {
  append_utf8(out, char32_t(utf8proc_tolower(utf8proc_int32_t(character))));
}

void append_titled(std::string& out, char32_t character) {
  if (character == 0xDF) {
    out += "Ss";
  } else {
    append_utf8(out, char32_t(utf8proc_totitle(utf8proc_int32_t(character))));
  }
}

}  // namespace

std::string to_upper(std::string_view text) {
  return map_chars(text, append_upper);
}

std::string to_lower(std::string_view text) {
  return map_chars(text, append_lower);
}

std::string to_capitalized(std::string_view text) {
  bool first = true;
  return map_chars(text, [&](std::string& out, char32_t character) {
    first ? append_titled(out, character) : append_lower(out, character);
    first = false;
  });
}

std::string to_title(std::string_view text) {
  bool after_letter = false;
  return map_chars(text, [&](std::string& out, char32_t character) {
    after_letter ? append_lower(out, character) : append_titled(out, character);
    after_letter = is_cased(category_of(character));
  });
}

bool all_chars_are(std::string_view text, CharClass wanted) {
  bool any = false;
  for (size_t i = 0; i < text.size();) {
    size_t bytes = 1;
    const char32_t character = char_at(text, i, &bytes);
    i += bytes;
    const utf8proc_category_t category = category_of(character);
    bool fits = false;
    switch (wanted) {
      case CharClass::alpha:
        fits = is_letter(category);
        break;
      case CharClass::decimal:
        fits = category == UTF8PROC_CATEGORY_ND;
        break;
      case CharClass::digit:
        fits = category == UTF8PROC_CATEGORY_ND || is_superscript(character);
        break;
      case CharClass::numeric:
        fits = is_number(category);
        break;
      case CharClass::alnum:
        fits = is_letter(category) || is_number(category);
        break;
      case CharClass::space:
        fits = is_space(character);
        break;
      case CharClass::upper:
      case CharClass::lower: {
        // Characters without case do not count either way.
        if (!is_cased(category)) continue;
        fits = category == (wanted == CharClass::upper ? UTF8PROC_CATEGORY_LU : UTF8PROC_CATEGORY_LL);
        break;
      }
    }
    if (!fits) return false;
    any = true;
  }
  return any;
}

}  // namespace quire::jinja
