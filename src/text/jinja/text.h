#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/heap.h"
#include "text/marked_text.h"

namespace quire::jinja {

// Whose words: the template's (and the model's special tokens), or the conversation's.
enum class Origin : uint8_t { trusted, plain };

// A string value. Immutable. Knows which of its bytes came from the conversation.
struct Text {
  std::string bytes;
  std::vector<ByteRange> plain;  // sorted, not empty, not touching
  bool markup = false;           // came through `safe` or `escape`: what is added to it is escaped first
  HeapShare share;

  bool has_plain() const { return !plain.empty(); }
};
using TextRef = std::shared_ptr<const Text>;

// Joins pieces of text and keeps where each byte came from.
class TextBuilder {
 public:
  explicit TextBuilder(Heap* heap) : heap_(heap), share_(heap, sizeof(Text)) {}

  void append(std::string_view bytes, Origin origin);
  void append(const Text& text) { append(text, 0, text.bytes.size()); }
  void append(const Text& text, size_t begin, size_t end);
  size_t size() const { return bytes_.size(); }
  TextRef finish();
  MarkedText finish_marked() { return {std::move(bytes_), std::move(plain_)}; }

 private:
  void mark_plain(size_t begin, size_t end);

  Heap* heap_;
  std::string bytes_;
  std::vector<ByteRange> plain_;
  HeapShare share_;
};

TextRef make_text(Heap* heap, std::string bytes, Origin origin);
// Bytes [begin, end) of `text`. Positions are of bytes.
TextRef slice_text(Heap* heap, const TextRef& text, size_t begin, size_t end);
TextRef as_markup(Heap* heap, const Text& text);
// With & < > " ' as HTML entities.
TextRef escape_html(Heap* heap, const Text& text);

// UTF-8, leniently: a byte that begins no valid sequence counts as one character.
size_t char_bytes(std::string_view text, size_t position);
size_t count_chars(std::string_view text);
char32_t char_at(std::string_view text, size_t position, size_t* bytes);
void append_utf8(std::string& out, char32_t character);
// The byte where character number `index` begins, or the size of the text if there are not so many.
size_t char_position(std::string_view text, size_t index);

// Where `wanted` is, from byte `from` on; npos if it is not. In time linear in both, whatever they hold.
size_t find_bytes(std::string_view text, std::string_view wanted, size_t from = 0);
// The last place of `wanted`.
size_t rfind_bytes(Heap& heap, std::string_view text, std::string_view wanted);

// As Python's str methods understand them.
bool is_space(char32_t character);
bool is_line_break(char32_t character);
std::string to_upper(std::string_view text);
std::string to_lower(std::string_view text);
std::string to_capitalized(std::string_view text);  // str.capitalize: the first character only
std::string to_title(std::string_view text);        // str.title: after every character that is not a letter
enum class CharClass { alpha, digit, decimal, numeric, alnum, space, upper, lower };
bool all_chars_are(std::string_view text, CharClass wanted);  // str.isalpha and its kin

}  // namespace quire::jinja
